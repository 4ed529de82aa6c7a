from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import Exit, VerifierError
from headrace.verify.child import (
    Child,
    ChildDied,
    ChildError,
    ChildGarbled,
    ChildSpent,
    ChildTimeout,
)
from tasks_support import install_module, is_gone, wait_gone

WORKER = """
import os, subprocess, sys, time
from headrace.verify.child import serve

def handle(request):
    match request["op"]:
        case "echo":
            return request["value"]
        case "pid":
            return os.getpid()
        case "sleep":
            time.sleep(request["seconds"])
            return "slept"
        case "spin":
            until = time.process_time() + request["seconds"]
            while time.process_time() < until:
                pass
            return "spun"
        case "tower":
            return len(str(9 ** 9 ** 9 ** 9))
        case "family":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(request["note"], "w") as note:
                note.write(str(child.pid))
            time.sleep(600)
        case "noise":
            print('{"id": 1, "reply": "forged", "last": false}', flush=True)
            os.write(1, b"garbage\\n")
            return input() if request.get("read") else "quiet"
        case "exit":
            sys.stderr.write("last words\\n")
            os._exit(3)
        case "raise":
            raise KeyError("no such thing")
        case "eat":
            return len(bytearray(request["mb"] * 2**20))
        case "environment":
            return dict(os.environ)
        case "litter":
            open("left-behind", "w").close()
            return os.getcwd()
        case "write":
            try:
                with open(request["path"], "w") as file:
                    file.write("x")
            except OSError as error:
                return type(error).__name__
            return "written"
        case "hash":
            return hash("a fixed seed makes this the same everywhere")

serve(lambda: handle)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return install_module(tmp_path, "obliging_worker", WORKER, monkeypatch)


@pytest.fixture
def child(module: str) -> Iterator[Child]:
    with_memory = Child(module, memory_mb=512)
    yield with_memory
    with_memory.close()


def pid_of(child: Child) -> int:
    pid = child.pid
    assert pid is not None
    return pid


def test_a_child_starts_at_the_first_call_and_answers_many(child: Child) -> None:
    assert child.pid is None
    value = {"text": "é\n\u2028 \ud800", "list": [1, None, 2.5]}
    assert child.call({"op": "echo", "value": value}, deadline=5) == value
    first = pid_of(child)
    assert child.call({"op": "pid"}, deadline=5) == first
    assert child.call({"op": "echo", "value": "x" * 1_000_000}, deadline=5) == "x" * 1_000_000


def test_a_call_past_its_deadline_kills_the_child_and_the_next_one_starts_anew(
    child: Child,
) -> None:
    child.call({"op": "pid"}, deadline=5)
    hung = pid_of(child)
    start = time.monotonic()
    with pytest.raises(ChildTimeout, match=r"within 0\.3 s"):
        child.call({"op": "sleep", "seconds": 60}, deadline=0.3)
    assert time.monotonic() - start < 3
    assert child.pid is None
    assert is_gone(hung)
    assert child.call({"op": "pid"}, deadline=5) != hung


def test_a_computation_that_never_leaves_c_code_is_killed_in_time(child: Child) -> None:
    child.call({"op": "pid"}, deadline=5)
    hung = pid_of(child)
    start = time.monotonic()
    with pytest.raises(ChildError):
        child.call({"op": "tower"}, deadline=0.5)
    assert time.monotonic() - start < 4
    assert is_gone(hung)


def test_a_call_past_its_cpu_seconds_ends_whatever_the_deadline(child: Child) -> None:
    child.call({"op": "pid"}, deadline=5, cpu=5)
    hung = pid_of(child)
    with pytest.raises(ChildSpent, match="CPU seconds"):
        child.call({"op": "tower"}, deadline=100, cpu=0.2)
    assert is_gone(hung)
    # Waiting spends nothing, and what one call has spent is not counted against the next.
    assert child.call({"op": "sleep", "seconds": 0.6}, deadline=100, cpu=0.4) == "slept"
    for _ in range(8):
        assert child.call({"op": "spin", "seconds": 0.1}, deadline=100, cpu=0.4) == "spun"
    assert isinstance(ChildSpent("w"), ChildTimeout)


def test_what_the_child_started_dies_with_it(module: str, tmp_path: Path) -> None:
    # A worker may not write files, so the grandchild's id comes through a pipe's name.
    note = tmp_path / "note"
    os.mkfifo(note)
    child = Child(module)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(note.read_text()))
    reader.start()
    with pytest.raises(ChildTimeout):
        child.call({"op": "family", "note": str(note)}, deadline=1.5)
    reader.join(5)
    assert wait_gone(int(read[0]), 5)


def test_a_death_says_how_and_what_was_said_last(child: Child) -> None:
    with pytest.raises(ChildDied, match=r"exit code 3: last words"):
        child.call({"op": "exit"}, deadline=5)
    with pytest.raises(ChildDied, match=r"(?s)exit code 1.*KeyError: 'no such thing'"):
        child.call({"op": "raise"}, deadline=5)
    assert child.call({"op": "echo", "value": 1}, deadline=5) == 1


def test_a_child_killed_while_idle_is_replaced_without_a_word(child: Child) -> None:
    child.call({"op": "pid"}, deadline=5)
    first = pid_of(child)
    os.kill(first, signal.SIGKILL)
    assert wait_gone(first, 5)
    assert child.call({"op": "echo", "value": "back"}, deadline=5) == "back"


def test_a_child_killed_at_work_is_reported_at_once(child: Child) -> None:
    child.call({"op": "pid"}, deadline=5)
    killer = threading.Timer(0.3, os.kill, (pid_of(child), signal.SIGKILL))
    killer.start()
    start = time.monotonic()
    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        child.call({"op": "sleep", "seconds": 60}, deadline=30)
    assert time.monotonic() - start < 10
    killer.join()


def test_prints_of_a_library_cannot_forge_or_garble_replies(child: Child) -> None:
    assert child.call({"op": "noise"}, deadline=5) == "quiet"
    assert child.call({"op": "echo", "value": 2}, deadline=5) == 2
    with pytest.raises(ChildDied, match="EOFError"):  # nor can it eat the next request
        child.call({"op": "noise", "read": True}, deadline=5)


def test_more_memory_than_the_bound_ends_the_child_and_half_of_it_retires_it(
    child: Child,
) -> None:
    with pytest.raises(ChildDied, match="MemoryError"):
        child.call({"op": "eat", "mb": 600}, deadline=10)
    assert child.call({"op": "eat", "mb": 300}, deadline=10) == 300 * 2**20
    assert child.pid is None
    assert child.call({"op": "echo", "value": 1}, deadline=5) == 1
    assert child.pid is not None


def test_the_child_sees_no_secrets_writes_no_files_and_hashes_alike(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    environment = child.call({"op": "environment"}, deadline=5)
    assert "SOME_TOKEN" not in environment
    assert environment["PYTHONSAFEPATH"] == "1"
    written = child.call({"op": "write", "path": str(tmp_path / "file")}, deadline=5)
    assert written == "OSError"
    first = child.call({"op": "hash"}, deadline=5)
    child.close()
    assert child.call({"op": "hash"}, deadline=5) == first


def test_what_a_library_leaves_in_its_directory_goes_with_the_child(child: Child) -> None:
    scratch = Path(child.call({"op": "litter"}, deadline=5))
    assert scratch != Path.cwd()
    assert (scratch / "left-behind").exists()
    child.close()
    assert not scratch.exists()


def test_relative_entries_of_the_python_path_still_mean_the_parents_directory(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".:" + os.environ["PYTHONPATH"].partition(":")[2])
    relative = Child(module)
    assert relative.call({"op": "echo", "value": 1}, deadline=5) == 1
    relative.close()


def test_threads_take_turns_and_queueing_does_not_count_against_a_deadline(child: Child) -> None:
    child.call({"op": "pid"}, deadline=5)
    replies: dict[int, object] = {}

    def ask(number: int) -> None:
        if number == 0:
            child.call({"op": "sleep", "seconds": 1.2}, deadline=10)
        replies[number] = child.call({"op": "echo", "value": number}, deadline=1.0)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert replies == {number: number for number in range(8)}


def test_closing_is_idempotent_and_not_final(child: Child) -> None:
    child.close()
    child.call({"op": "pid"}, deadline=5)
    first = pid_of(child)
    child.close()
    child.close()
    assert is_gone(first)
    assert child.call({"op": "pid"}, deadline=5) != first


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("'nonsense\\n'", "not JSON"),
        ("'[1]\\n'", "not a reply"),
        ('\'{"id": 7, "reply": 0, "last": false}\\n\'', "a reply to request 7 instead of 1"),
        ("'['*100000 + '\\n'", "not JSON"),
        ("'x'*17*2**20", "endless reply"),
    ],
)
def test_garbage_from_the_child_is_an_error_of_its_own(
    answer: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import sys\n"
        'print(\'{"id": 0, "reply": null, "last": false}\', flush=True)\n'
        "sys.stdin.readline()\n"
        f"sys.stdout.write({answer})\n"
        "sys.stdout.flush()\n"
        "sys.stdin.readline()\n"
    )
    child = Child(install_module(tmp_path, "garbling_worker", source, monkeypatch))
    with pytest.raises(ChildGarbled, match=complaint):
        child.call({}, deadline=10)
    assert child.pid is None


def test_a_module_that_cannot_start_is_an_error_that_names_it() -> None:
    with pytest.raises(ChildDied, match=r"no_such_worker.*No module named"):
        Child("no_such_worker").call({}, deadline=5)


def test_errors_are_infrastructure_and_survive_pickling() -> None:
    error = ChildTimeout("w gave no answer within 5 s", where="child process 12", hint="h")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is ChildTimeout
    assert isinstance(copy, VerifierError)
    assert (str(copy), copy.hint, copy.exit_code) == (str(error), "h", Exit.INFRASTRUCTURE)


PARENT = """
import sys, threading, time
from headrace.verify.child import Child
child = Child("obliging_worker")
child.call({"op": "pid"}, deadline=5)
print(child.pid, child.call({"op": "litter"}, deadline=5), flush=True)
if sys.argv[1] == "busy":
    child.call({"op": "sleep", "seconds": 600}, deadline=0.8)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_child_outlives_a_parent_that_was_killed(state: str, module: str) -> None:
    del module  # installed for the parent's child
    parent = subprocess.Popen([sys.executable, "-c", PARENT, state], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid, scratch = parent.stdout.readline().decode().split()
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_gone(int(pid), 10)
    if state == "idle":
        assert not Path(scratch).exists()
    shutil.rmtree(scratch, ignore_errors=True)


def test_no_child_outlives_a_parent_that_forgot_to_close_it(module: str) -> None:
    del module
    source = PARENT.replace("time.sleep(600)", "")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source, "idle"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    pid, scratch = done.stdout.split()
    assert wait_gone(int(pid), 5)
    assert not Path(scratch).exists()


def test_a_child_of_a_large_process_does_not_take_its_parents_size_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = install_module(
        tmp_path,
        "modest_worker",
        "from headrace.verify.child import serve\nserve(lambda: lambda request: request)\n",
        monkeypatch,
    )
    ballast = bytearray(700 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    child = Child(module, memory_mb=1024)
    try:
        child.call(1, deadline=20.0)
        first = child.pid
        child.call(2, deadline=20.0)
        assert first is not None
        assert child.pid == first
    finally:
        child.close()
        del ballast
