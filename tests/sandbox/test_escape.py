"""Ways out of a sandbox of the oci backend, tried from inside: none leads anywhere.

Runs for every OCI runtime, since each builds the walls anew from the same configuration.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from abuse_support import LIMITS, Cell, Rig, groups, owner, rig_with_nothing_left
from headrace.sandbox import Network
from headrace.sandbox.oci.backend import OciBackend

RUNTIMES = ("crun", "runc")

_PRELUDE = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    "What a system call returned, or the name of its error."
    ctypes.set_errno(0)
    done = libc.syscall(number, *arguments)
    return str(done) if done >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return "done"
"""


def parameters() -> list[object]:
    """Every runtime; one that is missing says what to install."""
    found: list[object] = []
    for name in RUNTIMES:
        reason = OciBackend(name).available()
        hint = f"{name}: {reason}" + ("; apt-get install runc" if name == "runc" else "")
        found.append(pytest.param(name, marks=pytest.mark.skipif(reason is not None, reason=hint)))
    return found


@pytest.fixture(scope="module", params=parameters())
def rig(request: pytest.FixtureRequest) -> Generator[Rig]:
    with rig_with_nothing_left(request.param) as rig:
        yield rig


@pytest.fixture(scope="module")
def shared(rig: Rig) -> Generator[Cell]:
    """One sandbox for all that should change nothing."""
    cell = rig.cell()
    yield cell
    cell.close()


@pytest.fixture
def cell(shared: Cell) -> Generator[Cell]:
    yield shared
    shared.assert_well()


def answers(cell: Cell, source: str, *arguments: str) -> dict[str, str]:
    """What a script printed, as words by the first word of each line."""
    said = cell.says(_PRELUDE + source, *arguments)
    return dict(line.split(" ", 1) for line in said.splitlines())


# --- what a command starts with ------------------------------------------------------------


def test_a_command_has_three_descriptors_and_no_more(cell: Cell) -> None:
    """A descriptor of a directory outside would lead out of any chroot."""
    said = cell.says(
        "import os\n"
        "for fd in range(100_000):\n"
        "    try:\n"
        "        os.fstat(fd)\n"
        "    except OSError:\n"
        "        continue\n"
        "    print(fd, os.readlink(f'/proc/self/fd/{fd}').partition(':')[0])\n"
    )
    assert said == "0 pipe\n1 pipe\n2 pipe\n"


def test_a_command_has_no_right_of_any_kind(cell: Cell) -> None:
    for user in ("agent", "verifier"):
        said = cell.exec("cat", "/proc/self/status", user=user).stdout.text
        status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[kind], 16) == 0
        ids = {int(word) for word in status["Uid"].split() + status["Gid"].split()}
        assert len(ids) == 1
        assert min(ids) >= (10_000 if os.geteuid() else 700_000_000)
        assert status["Groups"].split() in ([], [str(min(ids))])


def test_whoever_runs_inside_is_neither_root_nor_the_manager_outside(cell: Cell) -> None:
    start = "setsid sleep 600 > /dev/null 2>&1 & echo $!"
    agent, verifier = cell.sh(start), cell.sh(start, user="verifier")
    owners = {owner(pid) for pid in cell.processes()}
    assert len(owners) == 2
    assert not owners & {0, os.geteuid()}
    assert cell.sh(f"kill {agent.stdout.text}").ok
    assert cell.sh(f"kill {verifier.stdout.text}", user="verifier").ok


def test_nothing_on_the_way_gives_rights_to_who_executes_it(cell: Cell) -> None:
    """Programs with the set-user-id bit are in /usr, and gain nothing there."""
    mounts = cell.exec("cat", "/proc/self/mountinfo").stdout.text.splitlines()
    for line in mounts:
        point, options = line.split()[4:6]
        inside_proc_or_dev = point.startswith(("/proc/", "/dev/"))
        assert "nosuid" in options or inside_proc_or_dev, line
    writable = {line.split()[4] for line in mounts if "rw" in line.split()[5].split(",")}
    devices = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero")}
    assert writable <= {"/", "/dev", "/dev/pts", "/dev/shm", *devices} | {
        point for point in writable if point.startswith("/proc/")
    }
    said = cell.says(
        "import os, shutil, subprocess\n"
        "for name in ('su', 'mount', 'passwd', 'newgrp', 'chsh', 'sudo'):\n"
        "    path = shutil.which(name)\n"
        "    if path and os.stat(path).st_mode & 0o4000:\n"
        "        held = subprocess.Popen([path], stdin=-1, stdout=-3, stderr=-3)\n"
        "        status = open(f'/proc/{held.pid}/status').read()\n"
        "        held.kill()\n"
        "        line = next(l for l in status.splitlines() if l.startswith('Uid'))\n"
        "        print(name, *set(line.split()[1:]) - {str(os.getuid())})\n"
    )
    assert all(len(line.split()) == 1 for line in said.splitlines()), said
    assert said


# --- files of others -----------------------------------------------------------------------


def test_files_of_the_machine_cannot_be_read(cell: Cell, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    paths = [
        *("/etc/shadow", "/etc/machine-id", "/etc/hostname", "/root/.bashrc", "/run/headrace"),
        *("/proc/1/environ", "/proc/1/root/etc", "/proc/1/cwd/box", "/proc/1/maps", "/proc/1/mem"),
        *("/proc/1/fd", "/proc/1/fd/3", "/proc/kmsg", "/dev/kmsg", "/dev/mem"),
        *("/dev/vda", "/sys/kernel", "/sys/fs/cgroup", "/proc/kpagecount", "/proc/slabinfo"),
        *(str(secret), f"/proc/self/root{secret}", f"/proc/self/cwd/../..{secret}"),
        *(f"/../../../..{secret}", os.environ["HEADRACE_SANDBOX_STATE"]),
    ]
    said = answers(
        cell,
        "for path in sys.argv[1:]:\n"
        "    print(path, attempt(lambda: os.listdir(path) if os.path.isdir(path)"
        " else open(path, 'rb').read(1)))\n",
        *paths,
    )
    wrong = {path: end for path, end in said.items() if end not in ("ENOENT", "EACCES", "EPERM")}
    assert not wrong
    assert len(said) == len(paths)
    masked = cell.sh("cat /proc/keys /proc/timer_list /proc/interrupts; head -c 1 /proc/kcore")
    assert masked.stdout.data == b""
    assert not masked.stderr.data or masked.stderr.text.endswith("No such file or directory\n")
    names = cell.sh("cut -d: -f1 /etc/passwd; cat /proc/sys/kernel/hostname")
    assert names.stdout.text.split() == ["root", "agent", "verifier", "box"]


def test_the_manager_s_environment_and_processes_are_not_seen(cell: Cell) -> None:
    said = cell.says(
        "import os\n"
        "for pid in sorted(int(name) for name in os.listdir('/proc') if name.isdigit()):\n"
        "    line = open(f'/proc/{pid}/cmdline').read().replace(chr(0), ' ')\n"
        "    print(pid, line)\n"
        "    if line != '/supervisor ':\n"
        "        print(open(f'/proc/{pid}/environ').read().replace(chr(0), ' '))\n"
    )
    assert said.startswith("1 /supervisor \n")
    assert 3 <= len(said.splitlines()) <= 4
    for name in ("HEADRACE", "PYTEST", "VIRTUAL_ENV", "SSH"):
        assert name not in said


def test_files_of_another_sandbox_cannot_be_read(rig: Rig, cell: Cell) -> None:
    other = rig.cell()
    assert other.sh("umask 0; for d in . /tmp /dev/shm; do echo secret > $d/secret; done").ok
    found = cell.sh("cat secret /tmp/secret /dev/shm/secret; find / -name secret 2>/dev/null")
    assert b"secret" not in found.stdout.data
    ids = {each.exec("id", "-u").stdout.text for each in (cell, other)}
    ids |= {each.exec("id", "-u", user="verifier").stdout.text for each in (cell, other)}
    assert len(ids) == 4
    other.assert_well()
    other.close()


def test_writes_outside_are_refused(cell: Cell) -> None:
    said = answers(
        cell,
        "for path in sys.argv[1:]:\n    print(path, attempt(lambda: open(path, 'w').write('x')))\n",
        *("/usr/bin/evil", "/usr/bin/env", "/etc/passwd", "/etc/evil", "/evil", "/proc/evil"),
        *("/dev/evil", "/bin/sh", "/lib/evil", "/opt/evil", "/home/evil", "/run/evil"),
        *("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"),
        *("/proc/1/mem", "/proc/1/oom_score_adj", "/proc/self/oom_score_adj", "/proc/self/uid_map"),
        *("/proc/self/setgroups", "/proc/irq/default_smp_affinity", "/home/verifier/evil"),
    )
    assert set(said.values()) <= {"EACCES", "EROFS", "ENOENT", "EPERM"}, said


def test_the_score_for_the_oom_killer_cannot_be_lowered(cell: Cell) -> None:
    """Whoever is never killed makes the kernel kill somebody else."""
    said = answers(
        cell,
        "path = '/proc/self/oom_score_adj'\n"
        "for score in (-1000, -1, 0, 1, 500, 899):\n"
        "    print(score, attempt(lambda: open(path, 'w').write(str(score))))\n"
        "print('is', open(path).read().strip())\n",
    )
    assert said.pop("is") == "900"
    assert set(said.values()) <= {"EROFS", "EACCES"}


# --- other processes -----------------------------------------------------------------------


def test_nobody_s_memory_can_be_reached(cell: Cell) -> None:
    started = cell.sh("setsid sleep 600 > /dev/null 2>&1 & echo $!", user="verifier")
    said = answers(
        cell,
        "victim, own = int(sys.argv[1]), os.fork()\n"
        "if own == 0:\n"
        "    import time; time.sleep(600)\n"
        "buffer = ctypes.create_string_buffer(16)\n"
        "for name, pid in (('one', 1), ('verifier', victim), ('own', own)):\n"
        "    print('attach-' + name, call(101, 16, pid, 0, 0))\n"
        "    print('seize-' + name, call(101, 0x4206, pid, 0, 0))\n"
        "    print('read-' + name, call(310, pid, buffer, 1, buffer, 1, 0))\n"
        "    print('write-' + name, call(311, pid, buffer, 1, buffer, 1, 0))\n"
        "    print('pidfd-' + name, call(438, os.pidfd_open(pid), 0, 0))\n"
        "    if name != 'own':\n"
        "        print('mem-' + name, attempt(lambda: open(f'/proc/{pid}/mem', 'rb')))\n"
        "        print('env-' + name, attempt(lambda: open(f'/proc/{pid}/environ', 'rb')))\n"
        "        for number in (0, 9, 19, 15):\n"
        "            print(f'kill{number}-' + name, attempt(lambda: os.kill(pid, number)))\n"
        "os.kill(own, 9)\n",
        started.stdout.text.strip(),
    )
    assert set(said.values()) <= {"EPERM", "EACCES"}, said
    assert cell.sh(f"kill {started.stdout.text}", user="verifier").ok


# --- doors of the kernel -------------------------------------------------------------------

_SYSTEM_CALLS = {
    "mount": "165, b't', b'/tmp', b'tmpfs', 0, 0",
    "umount2": "166, b'/usr', 2",
    "pivot_root": "155, b'/', b'/'",
    "chroot": "161, b'/tmp'",
    "mknod": "133, b'/tmp/disk', 0o60666, 0xfe00",
    "fsopen": "430, b'tmpfs', 0",
    "open_tree": "428, -100, b'/', 1",
    "move_mount": "429, -100, b'/', -100, b'/tmp', 0",
    "mount_setattr": "442, -100, b'/', 0, 0, 0",
    "unshare-user": "272, 0x10000000",
    "unshare-mount": "272, 0x20000",
    "unshare-net": "272, 0x40000000",
    "clone-user": "56, 0x10000011, 0, 0, 0, 0",
    "clone-pid": "56, 0x20000011, 0, 0, 0, 0",
    "clone3": "435, 0, 0",
    "setns": "308, 0, 0",
    "open_by_handle_at": "304, 0, 0, 0",
    "name_to_handle_at": "303, -100, b'/', 0, 0, 0",
    "add_key": "248, b'user', b'a', b'b', 1, -3",
    "keyctl": "250, 0",
    "request_key": "249, b'user', b'a', 0, -3",
    "io_uring_setup": "425, 1, 0",
    "bpf": "321, 0, 0, 0",
    "userfaultfd": "323, 0",
    "perf_event_open": "298, 0, 0, -1, -1, 0",
    "init_module": "175, 0, 0, b''",
    "kexec_load": "246, 0, 0, 0, 0",
    "reboot": "169, 0xfee1dead, 672274793, 0x1234567, 0",
    "settimeofday": "164, 0, 0",
    "clock_settime": "227, 0, 0",
    "adjtimex": "159, 0",
    "sethostname": "170, b'evil', 4",
    "syslog": "103, 3, 0, 0",
    "acct": "163, 0",
    "swapon": "167, b'/tmp/x', 0",
    "quotactl": "179, 0, 0, 0, 0",
    "setuid": "105, 0",
    "setgroups": "116, 0, 0",
    "setxattr-trusted": "188, b'/workspace', b'trusted.overlay.opaque', b'y', 1, 0",
    "whiteout": "133, b'/workspace/w', 0o20666, 0",
    "nice": "141, 0, 0, -10",
}


def test_system_calls_with_a_history_are_refused(cell: Cell) -> None:
    lines = (f"print({name!r}, call({what}))\n" for name, what in _SYSTEM_CALLS.items())
    said = answers(cell, "".join(lines))
    assert set(said) == set(_SYSTEM_CALLS)
    wrong = {name: end for name, end in said.items() if end not in ("EPERM", "ENOSYS", "EACCES")}
    assert not wrong


def test_other_ways_into_the_kernel_have_the_same_guard(cell: Cell) -> None:
    """`int 0x80` takes 32-bit numbers, and socket(2) there hides its family in memory; x32 has
    numbers of its own."""
    said = answers(
        cell,
        "import mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 5)\n"
        "low = libc.mmap(0x10000000, 4096, 3, 0x32, 2**64 - 1, 0)\n"
        "\n"
        "def old(number, *arguments):\n"
        "    code = bytes.fromhex('53b8') + number.to_bytes(4, 'little')\n"
        "    for load, value in zip((0xbb, 0xb9, 0xba), arguments):\n"
        "        code += bytes([load]) + value.to_bytes(4, 'little')\n"
        "    page.seek(0)\n"
        "    page.write(code + bytes.fromhex('cd805bc3'))\n"
        "    start = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "    done = ctypes.CFUNCTYPE(ctypes.c_int)(start)()\n"
        "    return str(done) if done >= 0 else errno.errorcode[-done]\n"
        "\n"
        "for name, work in (\n"
        "    ('unshare', lambda: old(310, 0x10000000)),\n"
        "    ('ptrace', lambda: old(26, 16, 1)),\n"
        "    ('mount', lambda: old(21, 0, 0, 0)),\n"
        "    ('keyctl', lambda: old(288, 0)),\n"
        "    ('x32-ptrace', lambda: call(0x40000000 | 521, 16, 1, 0, 0)),\n"
        "    ('socket-vsock', lambda: old(359, 40, 1, 0)),\n"
        "    ('socketcall', lambda: ctypes.memmove(low, bytes([40,0,0,0,1,0,0,0,0,0,0,0]), 12)\n"
        "     and old(102, 1, low)),\n"
        "):\n"
        "    reader, writer = os.pipe()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.write(writer, work().encode())\n"
        "        os._exit(0)\n"
        "    os.close(writer)\n"
        "    os.waitpid(child, 0)\n"
        "    print(name, os.read(reader, 99).decode() or 'killed')\n",
    )
    assert len(said) == 7
    assert set(said.values()) <= {"EPERM", "EAFNOSUPPORT", "ENOSYS", "killed"}, said


# --- networks and sockets ------------------------------------------------------------------


def test_nothing_of_the_network_is_reached(cell: Cell) -> None:
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("0.0.0.0", 0))
        udp.settimeout(0.2)
        said = answers(
            cell,
            "tcp, udp = int(sys.argv[1]), int(sys.argv[2])\n"
            "for host in ('127.0.0.1', '10.0.0.1', '169.254.169.254', '192.0.2.1'):\n"
            "    print('tcp-' + host, attempt(lambda: socket.create_connection((host, tcp), 1)))\n"
            "    out = socket.socket(type=socket.SOCK_DGRAM)\n"
            "    print('udp-' + host, attempt(lambda: out.sendto(b'out', (host, udp))))\n"
            "for family in (17, 29, 31, 38, 40, 44):\n"
            "    for kind in (1, 2, 3, 5):\n"
            "        print(family * 10 + kind, attempt(lambda: socket.socket(family, kind)))\n"
            "print('raw', attempt(lambda: socket.socket(socket.AF_INET, 3, 1)))\n"
            "print('names', *(line.split(':')[0] for line in list(open('/proc/net/dev'))[2:]))\n",
            str(tcp.getsockname()[1]),
            str(udp.getsockname()[1]),
        )
        with pytest.raises(TimeoutError):
            udp.recv(16)
    assert said.pop("names").split() == ["lo"]
    assert said.pop("udp-127.0.0.1") == "done"
    assert "done" not in said.values(), said


def test_the_network_cannot_be_changed(cell: Cell) -> None:
    said = answers(
        cell,
        "import struct\n"
        "def change(kind, body):\n"
        "    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
        "    link.bind((0, 0))\n"
        "    link.send(struct.pack('=IHHII', 16 + len(body), kind, 5, 1, 0) + body)\n"
        "    number = struct.unpack_from('=i', link.recv(4096), 16)[0]\n"
        "    return 'done' if number == 0 else errno.errorcode[-number]\n"
        "link = struct.pack('=BxHiII', 0, 0, 1, 0, 1)\n"
        "print('down', change(16, link))\n"
        "print('address', change(20, struct.pack('=BBBBI', 2, 8, 0, 0, 1)"
        " + struct.pack('=HH4s', 8, 2, bytes([10, 0, 0, 1]))))\n"
        "print('route', change(24, struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 254, 3, 0, 1, 0)))\n",
    )
    assert set(said.values()) == {"EPERM"}, said


@pytest.mark.parametrize("kind", ["none", "full"])
def test_unix_sockets_of_the_machine_are_not_reached(rig: Rig, kind: str, tmp_path: Path) -> None:
    """Those with a file are in another tree; those without are in the network's namespace."""
    cell = rig.cell(network=Network(kind="none" if kind == "none" else "full"))
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as bare:
        path = f"/tmp/hr-{os.getpid()}.sock"
        named.bind(path)
        bare.bind(f"\0hr-{os.getpid()}")
        for server in (named, bare):
            server.listen()
        try:
            said = answers(
                cell,
                "for name, where in (('named', sys.argv[1]), ('bare', chr(0) + sys.argv[2])):\n"
                "    print(name, attempt(lambda: socket.socket(socket.AF_UNIX).connect(where)))\n"
                "own = socket.socket(socket.AF_UNIX)\n"
                "own.bind(chr(0) + 'own')\n"
                "own.listen()\n"
                "out = socket.socket(socket.AF_UNIX)\n"
                "print('own', attempt(lambda: out.connect(chr(0) + 'own')))\n",
                path,
                f"hr-{os.getpid()}",
            )
        finally:
            Path(path).unlink()
    assert said == {
        "named": "ENOENT",
        "bare": "ECONNREFUSED" if kind == "none" else "EPERM",
        "own": "done",
    }
    cell.assert_well()
    cell.close()


def test_allowed_hosts_are_all_that_is_reached(rig: Rig) -> None:
    """Also by numbers, by redirected names, and past the proxy."""
    listening = socket.create_server(("127.0.0.1", 0))
    other = socket.create_server(("127.0.0.1", 0))
    port, other_port = listening.getsockname()[1], other.getsockname()[1]

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nallowed")

    server = threading.Thread(target=serve)
    server.start()
    cell = rig.cell(network=Network(kind="allow-list", allow=(f"127.0.0.1:{port}",)))
    said = answers(
        cell,
        "import urllib.error, urllib.request\n"
        "for host, port in (word.rsplit(':', 1) for word in sys.argv[1:]):\n"
        "    try:\n"
        "        url = f'http://{host}:{port}/'\n"
        "        end = urllib.request.urlopen(url, timeout=5).read().decode()\n"
        "    except urllib.error.HTTPError as error:\n"
        "        end = str(error.code)\n"
        "    except OSError as error:\n"
        "        end = type(error).__name__\n"
        "    print(host + ':' + port, end)\n"
        "    print('direct-' + host + ':' + port,"
        " attempt(lambda: socket.create_connection((host, int(port)), 2)))\n",
        *(f"127.0.0.1:{port}", f"127.0.0.1:{other_port}", f"127.1:{port}", f"localhost:{port}"),
        *(f"[::ffff:127.0.0.1]:{other_port}", f"2130706433:{other_port}", "169.254.169.254:80"),
    )
    cell.close()
    listening.shutdown(socket.SHUT_RDWR)
    for closing in (listening, other):
        closing.close()
    server.join()
    assert said.pop(f"127.0.0.1:{port}") == "allowed"
    assert "allowed" not in said.values(), said
    assert "done" not in said.values(), said


# --- the whole -----------------------------------------------------------------------------


def test_after_all_this_the_supervisor_is_the_same_and_alone(rig: Rig, cell: Cell) -> None:
    assert cell.processes() == []
    assert Path(f"/proc/{cell.supervisor()}/comm").read_text() == "supervisor\n"
    most = (Path(group, "pids.max") for group in groups(cell.box.id))
    assert [int(path.read_text()) for path in most if path.exists()] == [LIMITS.processes + 2]
