"""Files as weapons: disks that are filled, archives and paths that lead elsewhere, races.

What moves files in and out does it as the sandbox's user, inside; see `oci.archives`.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from abuse_support import LIMITS, Cell, Rig, rig_with_nothing_left
from headrace.errors import UsageError
from headrace.sandbox import BoxLimits, Outcome
from headrace.sandbox.oci.backend import OciBackend

_UNAVAILABLE = OciBackend().available()
pytestmark = pytest.mark.skipif(_UNAVAILABLE is not None, reason=f"oci: {_UNAVAILABLE}")


@pytest.fixture(scope="module")
def rig() -> Generator[Rig]:
    with rig_with_nothing_left(None) as rig:
        yield rig


@pytest.fixture
def cell(rig: Rig) -> Generator[Cell]:
    """A sandbox that must be well when the test is over."""
    cell = rig.cell()
    yield cell
    cell.assert_well()
    cell.close()


# --- disk ----------------------------------------------------------------------------------


def test_a_full_disk_is_the_candidate_s_and_ends_with_its_files(cell: Cell) -> None:
    full = cell.sh("cat /dev/zero > fill")
    assert full.outcome is Outcome.DISK
    with pytest.raises(UsageError):
        cell.put_file("more", bytes(2**20))
    assert cell.sh("rm fill").ok


def test_shared_memory_files_are_of_the_same_disk(cell: Cell) -> None:
    full = cell.sh("cat /dev/zero > /dev/shm/fill")
    assert full.outcome is Outcome.DISK
    held = cell.says("import os; print(os.stat('/dev/shm/fill').st_size)")
    assert int(held) <= LIMITS.disk_mb * 2**20
    assert cell.sh("cat /dev/zero > also").outcome is Outcome.DISK
    assert cell.sh("rm -f /dev/shm/fill also").ok


def test_no_other_place_can_be_filled(cell: Cell) -> None:
    places = cell.says(
        "import os\n"
        "for top, names, _ in os.walk('/'):\n"
        "    names[:] = [n for n in names if not os.path.islink(os.path.join(top, n))]\n"
        "    names[:] = [n for n in names if (top, n) not in (('/', 'proc'), ('/', 'usr'))]\n"
        "    try:\n"
        "        open(os.path.join(top, 'probe'), 'w').close()\n"
        "    except OSError:\n"
        "        continue\n"
        "    print(os.stat(top).st_dev, top)\n"
    )
    found = dict(line.split(" ", 1)[::-1] for line in places.splitlines())
    assert set(found) == {"/tmp", "/var/tmp", "/dev/shm", "/workspace", "/home/agent"}


def test_files_without_number_meet_a_limit(cell: Cell) -> None:
    made = cell.python(
        "import os\n"
        "os.mkdir('many')\n"
        "for number in range(200_000):\n"
        "    open(f'many/{number}', 'w').close()\n"
    )
    assert made.outcome is Outcome.DISK
    assert cell.sh("rm -rf many").ok


def test_links_without_number_meet_a_limit(cell: Cell) -> None:
    made = cell.python(
        "import os\n"
        "open('one', 'w').close()\n"
        "for number in range(200_000):\n"
        "    os.link('one', f'l{number}')\n"
    )
    assert made.outcome in (Outcome.DISK, Outcome.RESULT)
    assert made.exit_code == 1
    assert cell.sh("find . -name 'l*' -delete").ok


def test_a_file_that_only_seems_large_costs_nobody_anything(cell: Cell, tmp_path: Path) -> None:
    assert cell.sh("truncate -s 1T sparse").ok
    with pytest.raises(UsageError):
        cell.get_file("sparse")
    with pytest.raises(UsageError):
        cell.get("sparse", tmp_path / "out", limit_mb=2)
    assert (tmp_path / "out").stat().st_size <= 2 * 2**20
    assert cell.sh("cat sparse > copy").outcome is Outcome.DISK
    assert cell.sh("rm sparse copy").ok


def test_directories_without_end_are_refused_on_the_way_out(cell: Cell, tmp_path: Path) -> None:
    made = cell.says(
        "import os\n"
        "for _ in range(3000):\n"
        "    os.mkdir('dir')\n"
        "    os.chdir('dir')\n"
        "print('made')\n"
    )
    assert made == "made\n"
    with pytest.raises(UsageError):
        cell.get("dir", tmp_path / "out")
    assert cell.sh("rm -rf dir").ok


def test_ten_thousand_files_are_no_trouble(rig: Rig, tmp_path: Path) -> None:
    cell = rig.cell(BoxLimits(memory_mb=384, disk_mb=128))
    cell.says("for number in range(10_000): open(f'f{number}', 'w').write(str(number))")
    ref = cell.snapshot()
    assert cell.sh("rm -f f1*; echo changed > f2").ok
    cell.restore(ref)
    assert cell.get_file("f2") == b"2"
    (child,) = cell.fork(1)
    assert child.says("import os; print(len(os.listdir()))") == "10000\n"
    child.close()
    cell.get(".", tmp_path / "out", limit_mb=32)
    assert (tmp_path / "out").stat().st_size > 10_000 * 1024
    assert cell.sh("find . -name 'f*' -delete").ok
    cell.assert_well()
    cell.close()


# --- in and out ----------------------------------------------------------------------------


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def members(path: Path) -> dict[str, bytes]:
    """Regular files of an archive."""
    with tarfile.open(path, "r:") as tar:
        files = {info.name: tar.extractfile(info) for info in tar if info.isreg()}
        return {name: file.read() for name, file in files.items() if file is not None}


_SWAP = """
import os, sys
# The directory `race` becomes a link to somewhere else, and back, as fast as it goes.
os.makedirs("race", exist_ok=True)
os.symlink(sys.argv[1], "link")
print("ready", flush=True)
libc = __import__("ctypes").CDLL(None)
while True:
    libc.renameat2(-100, b"race", -100, b"link", 2)
"""


def attempts(work: Callable[[int], None], rounds: int) -> int:
    """How often `work` was done, of `rounds` times; refusals are fine, anything else is not."""
    done = 0
    for number in range(rounds):
        try:
            work(number)
        except UsageError:
            continue
        done += 1
    return done


def start_swapping(cell: Cell, target: str) -> None:
    cell.put_file("swap.py", _SWAP.encode())
    assert cell.sh('setsid python3 swap.py "$1" > out 2>&1 &', target).ok
    assert cell.sh("until grep -q ready out; do sleep 0.01; done", timeout_s=10).ok


def test_a_directory_swapped_for_a_link_leads_no_file_out(cell: Cell, tmp_path: Path) -> None:
    """The link names a directory of this machine that everybody may write to."""
    tmp_path.chmod(0o777)
    start_swapping(cell, str(tmp_path))
    done = attempts(lambda n: cell.put_file(f"race/f{n}", b"in"), 40)
    done += attempts(lambda n: cell.put(archive(**{f"race__a{n}": b"in"})), 40)
    done += attempts(lambda n: cell.put(archive(**{f"t{n}": b"in"}), "race"), 40)
    assert done > 10
    assert list(tmp_path.iterdir()) == []
    cell.restore(cell.snapshot())


def test_a_swapped_link_does_not_lend_the_caller_s_rights(cell: Cell) -> None:
    """What is put for the agent cannot land where only the verifier may write."""
    assert cell.sh("mkdir ~/in && echo key > ~/in/key && chmod -R go= ~", user="verifier").ok
    start_swapping(cell, "/home/verifier/in")
    attempts(lambda n: cell.put_file(f"race/f{n}", b"in"), 40)
    attempts(lambda n: cell.put(archive(**{f"t{n}": b"in"}), "race"), 40)

    def read(_: int) -> None:
        assert cell.get_file("race/key") == b"", "a private file was read"

    assert attempts(read, 40) == 0
    assert cell.sh("ls ~/in", user="verifier").stdout.data == b"key\n"
    cell.restore(cell.snapshot())


def test_a_swapped_link_does_not_lead_get_out(cell: Cell, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the machine")
    secret.chmod(0o644)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.getuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o111)
    start_swapping(cell, str(tmp_path))
    out = tmp_path / "out.tar"

    def get(_: int) -> None:
        cell.get("race", out)
        assert b"of the machine" not in out.read_bytes()

    attempts(get, 40)
    for path in ("race/secret", f"/proc/1/root{secret}", str(secret)):
        with pytest.raises(UsageError):
            cell.get_file(path)
    cell.restore(cell.snapshot())


def test_put_replaces_links_and_does_not_write_through_them(cell: Cell) -> None:
    assert cell.sh("echo kept > kept; ln -s kept link; ln kept hard; ln -s loop loop").ok
    for name in ("link", "hard", "loop"):
        cell.put_file(name, b"new")
        assert cell.get_file(name) == b"new"
        assert cell.get_file("kept") == b"kept\n"


def test_what_is_no_file_is_left_out_and_never_waited_for(cell: Cell, tmp_path: Path) -> None:
    made = cell.says(
        "import os, socket\n"
        "os.mkdir('d')\n"
        "os.mkfifo('d/fifo')\n"
        "socket.socket(socket.AF_UNIX).bind('d/socket')\n"
        "os.symlink('/dev/zero', 'd/link')\n"
        "os.symlink('/proc/self/environ', 'environ')\n"
        "open(b'd/odd\\xff\\n', 'w').write('odd')\n"
        "open('d/closed', 'w').close()\n"
    )
    assert made == ""
    for path in ("d/fifo", "d/socket", "d/link", "/dev/zero", "/dev/full", "environ", "a\0b"):
        with pytest.raises(UsageError):
            cell.get_file(path)
    cell.get("d", tmp_path / "out")
    with tarfile.open(tmp_path / "out", "r:") as tar:
        found = {info.name: info.type for info in tar}
    assert found == {
        "d": tarfile.DIRTYPE,
        "d/closed": tarfile.REGTYPE,
        "d/link": tarfile.SYMTYPE,
        "d/odd\udcff\n": tarfile.REGTYPE,
    }


def test_a_file_that_grows_or_shrinks_while_it_is_read_is_still_an_archive(
    cell: Cell, tmp_path: Path
) -> None:
    grow = (
        "import os\n"
        "os.mkdir('d')\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    with open('d/f', 'wb') as file:\n"
        "        for _ in range(64):\n"
        "            file.write(b'x' * 4096)\n"
    )
    cell.put_file("grow.py", grow.encode())
    assert cell.sh("setsid python3 grow.py > out 2>&1 &").ok
    assert cell.sh("until test -e d/f; do sleep 0.01; done", timeout_s=10).ok
    for number in range(20):
        cell.get("d", tmp_path / f"{number}")
        assert set(members(tmp_path / f"{number}")) <= {"d/f"}
    cell.restore(cell.snapshot())


def test_no_code_of_the_sandbox_runs_where_files_are_moved(cell: Cell, tmp_path: Path) -> None:
    """The mover was a Python process with a path for imports, which may exist inside, too."""
    spoiled = "import os; open('/tmp/ran', 'w').write(str(os.getuid()))"
    for name in ("pwd", "grp", "bz2", "lzma", "zlib", "copy", "shutil", "encodings", "json"):
        cell.put_file(f"{name}.py", spoiled.encode())
    cell.put(archive(one=b"1"))
    cell.put(archive(two=b"2"), "/tmp")
    cell.get(".", tmp_path / "out")
    with pytest.raises(UsageError):
        cell.put(b"no archive" * 100)
    with pytest.raises(UsageError):
        cell.get_file("/tmp/ran")


def test_a_path_beyond_all_bounds_harms_no_other_sandbox(cell: Cell, tmp_path: Path) -> None:
    other = cell.rig.cell()
    deep = "import os\nfor _ in range(25):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\n"
    assert cell.python(deep).ok
    with pytest.raises(UsageError, match="too long"):
        cell.get(".", tmp_path / "out")
    for path in ("\udcff" * 3000, "x/" * 3000, ""):
        with pytest.raises(UsageError):
            cell.get_file(path)
    other.assert_well()
    other.close()
    assert cell.sh("rm -rf d*").ok


def test_times_and_sizes_that_cannot_be_are_errors_of_the_archive(cell: Cell) -> None:
    for header in ({"mtime": "1e300"}, {"size": "-1"}, {"size": "1" * 30}, {"path": "a\0b"}):
        info = tarfile.TarInfo("file")
        info.pax_headers = header
        data = info.tobuf(tarfile.PAX_FORMAT) + bytes(2048)
        with contextlib.suppress(UsageError):
            cell.put(data)
        cell.assert_well()
