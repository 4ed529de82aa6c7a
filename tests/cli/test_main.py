"""The command line as a program: fast help, clear errors, exit codes, clean streams."""

from __future__ import annotations

import errno
import json
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cli_support import headrace
from headrace import configure
from headrace.cli.main import app
from headrace.errors import (
    CheckpointError,
    Exit,
    GateFailed,
    HeadraceError,
    Interrupted,
    ModelError,
    NoSignalError,
    NumericalError,
    StorageError,
)

SMALLEST = "import typer\ndef smallest() -> None: ...\ntyper.run(smallest)"
"""The smallest program that typer makes, as it comes; its help page is drawn with rich."""
PROGRAM = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, env=env, check=False
    )


def processor_seconds(argv: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_costs_no_more_than_that_of_the_smallest_program_of_its_kind() -> None:
    programs = ([*PROGRAM, "--help"], [sys.executable, "-c", SMALLEST, "--help"])
    rounds = [[processor_seconds(argv) for argv in programs] for _ in range(7)]
    ours, theirs = (min(column) for column in zip(*rounds, strict=True))
    assert ours < 1.1 * theirs


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['headrace', '--help']\n"
        "from headrace.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as ending: assert ending.code == 0\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "headrace" in loaded
    assert not loaded & {"torch", "transformers", "pydantic", "numpy", "pyarrow", "rich", "scipy"}
    assert not loaded & {"asyncio", "sqlite3"}


VERBS = [
    *("run", "resume", "ls", "show", "diff", "report", "init", "doctor", "simulate"),
    *("data export", "data regrade", "data compact"),
    *("recipes ls", "recipes show", "recipes keys", "models pull", "models ls"),
    *("models show", "models lineage", "models merge"),
    *("domains ls", "domains show", "audit", "verifiers ls", "verifiers show"),
    *("sandbox doctor", "sandbox ls", "sandbox reap", "sandbox exec"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_teaches_by_two_examples(verb: str) -> None:
    shown = headrace(*verb.split(), "--help")
    assert shown.code == 0
    examples = shown.out.partition("Examples:")[2].split("\n\n")[0]
    assert examples.count(f"headrace {verb}") >= 2


def test_the_list_of_verbs_above_is_complete() -> None:
    names = {info.name for info in app.registered_commands}
    groups = {
        f"{group.name} {info.name}"
        for group in app.registered_groups
        if group.typer_instance is not None
        for info in group.typer_instance.registered_commands
    }
    assert names | groups == set(VERBS)


def test_version_goes_to_standard_output() -> None:
    shown = headrace("--version")
    assert (shown.code, shown.out.split()[0], shown.err) == (0, "headrace", "")


@pytest.mark.parametrize("arguments", [["runn"], ["run"], ["ls", "--no-such-option"]])
def test_a_wrong_command_line_exits_2_and_writes_no_data(arguments: list[str]) -> None:
    wrong = headrace(*arguments)
    assert (wrong.code, wrong.out) == (Exit.USAGE, "")
    assert "Error" in wrong.err


# --- errors --------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `headrace recipes ls` fail with the given error."""

    def fail_with(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr(configure, "shipped_recipes", fail)

    return fail_with


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ModelError, 2),
        (GateFailed, 3),
        (NoSignalError, 4),
        (NumericalError, 4),
        (StorageError, 5),
        (CheckpointError, 5),
        (Interrupted, 130),
        (HeadraceError, 1),
    ],
)
def test_an_error_is_two_lines_and_its_own_exit_code(
    failing: Callable[[BaseException], None], kind: type[HeadraceError], code: int
) -> None:
    failing(kind("it \x1b[2J broke", where="there", hint="do this"))
    ended = headrace("recipes", "ls")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err == "error: it �[2J broke (there)\nhint: do this\n"


def test_an_interrupt_exits_130(failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    assert headrace("recipes", "ls").code == Exit.INTERRUPTED


def test_a_full_disk_that_nobody_expected_is_still_infrastructure(
    failing: Callable[[BaseException], None],
) -> None:
    failing(OSError(errno.ENOSPC, "No space left on device", "somewhere"))
    ended = headrace("recipes", "ls")
    assert ended.code == Exit.INFRASTRUCTURE
    assert ended.err.startswith("error: the disk is full: No space left on device (somewhere)\n")


def test_an_unforeseen_error_is_called_a_bug_with_its_traceback() -> None:
    code = (
        "import sys; sys.argv = ['headrace', 'recipes', 'ls']\n"
        "from headrace import configure\n"
        "configure.shipped_recipes = lambda: 1 / 0\n"
        "from headrace.cli.main import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (Exit.BUG, "")
    assert "Traceback" in ended.stderr
    last = ended.stderr.splitlines()[-2:]
    assert last[0] == "error: a bug in headrace: ZeroDivisionError: division by zero"
    assert last[1].startswith("hint: ")


# --- streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["recipes", "ls"], ["recipes", "keys"]])
def test_a_reader_who_hangs_up_is_no_error(verb: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    command = [*PROGRAM, *verb]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=env, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_errors_are_coloured_on_a_terminal_unless_no_color_is_set(
    no_color: str, coloured: bool
) -> None:
    leader, follower = pty.openpty()
    env = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    command = [*PROGRAM, "recipes", "show", "nothing"]
    done = subprocess.run(command, stderr=follower, stdout=subprocess.PIPE, env=env, check=False)
    os.close(follower)
    said = os.read(leader, 65536).decode()
    os.close(leader)
    assert done.returncode == Exit.USAGE
    assert "error:" in said
    assert ("\x1b[" in said) is coloured


def test_json_is_the_only_thing_on_standard_output(tmp_path: Path) -> None:
    done = program("run", "smoke", "--dry-run", "--json", HEADRACE_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"recipe", "origins"}
