"""The verbs of `headrace sandbox`: ends and their exit codes, what is left, what is said."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cli_support import headrace
from headrace.cli import doctor, sandbox_doctor, sandbox_exec
from headrace.cli.main import main
from headrace.errors import Exit, UsageError
from headrace.sandbox import conformance, registry
from headrace.sandbox.conformance import Costs, Finding, Report
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.spec import (
    BoxLimits,
    Capture,
    ExecLimits,
    Network,
    Outcome,
    Result,
    SandboxFailure,
    SandboxSpec,
    Usage,
)

TRUSTED = ("--backend", "subprocess", "--isolation", "trusted", "--network", "full")
POINTS = [
    EntryPoint("oci", "headrace.sandbox.oci.backend:OciBackend", registry.GROUP),
    EntryPoint("subprocess", "headrace.sandbox.plain:PlainBackend", registry.GROUP),
]
UNAVAILABLE = OciBackend().available()
needs_oci = pytest.mark.skipif(UNAVAILABLE is not None, reason=f"the oci backend: {UNAVAILABLE}")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own, and the two backends that need no installation."""
    root = tmp_path / "state"
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(root))
    monkeypatch.setattr(registry, "entry_points", lambda group: POINTS)  # pyright: ignore
    return root


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: bytes
    err: str


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Ended]:
    """Runs `headrace sandbox exec`, whose streams are bytes."""

    def exec_(*arguments: str) -> Ended:
        capfdbinary.readouterr()
        with (
            patch.object(sys, "argv", ["headrace", "sandbox", "exec", *arguments]),
            patch.object(sys, "excepthook"),
            pytest.raises(SystemExit) as ending,
        ):
            main()
        said = capfdbinary.readouterr()
        assert isinstance(ending.value.code, int)
        return Ended(ending.value.code, said.out, said.err.decode())

    return exec_


def shell(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", script)


# --- exec ----------------------------------------------------------------------------------


def test_streams_come_out_byte_for_byte_and_the_exit_code_is_the_commands(
    run: Callable[..., Ended],
) -> None:
    ended = run(*TRUSTED, *shell(r"printf 'a\0\377\n'; echo b >&2; exit 7"))
    assert ended == Ended(7, b"a\0\xff\n", "b\n")
    assert headrace("sandbox", "ls", "--json").json == []


def test_options_of_the_command_are_its_own(run: Callable[..., Ended]) -> None:
    assert run(*TRUSTED, "echo", "--help", "-n").out == b"--help -n\n"


def test_an_end_by_signal_is_128_and_its_number(run: Callable[..., Ended]) -> None:
    ended = run(*TRUSTED, *shell("kill -11 $$"))
    assert (ended.code, ended.err) == (139, "ended by signal 11 (Segmentation fault)\n")


@pytest.mark.parametrize(("argv", "code"), [("no-such-program", 127), ("/etc", 126)])
def test_a_program_that_cannot_be_started_is_as_in_a_shell(
    run: Callable[..., Ended], argv: str, code: int
) -> None:
    assert run(*TRUSTED, "--", argv).code == code


def test_a_command_out_of_time_is_124_and_is_told(run: Callable[..., Ended]) -> None:
    ended = run(*TRUSTED, "--timeout", "0.5", *shell("echo begun; sleep 60"))
    assert (ended.code, ended.out) == (124, b"begun\n")
    assert ended.err.splitlines() == [
        "error: its time was over after 0.5 s; all that it started was killed",
        "hint: --timeout S gives it longer",
    ]


def test_a_flood_is_123(run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    small = ExecLimits(output_bytes=2**17, flood_bytes=2**16)
    monkeypatch.setattr(sandbox_exec, "_EXEC_LIMITS", small)
    ended = run(*TRUSTED, "yes")
    assert ended.code == 123
    assert len(ended.out) > 2**16
    assert ended.err.startswith("error: it wrote more than 64 MiB and was killed\nhint: ")


@needs_oci
@pytest.mark.parametrize(
    ("options", "script", "code", "says"),
    [
        (["--memory", "64"], "head -c 100000000 /dev/zero | tail", 137, "limit of 64 MiB"),
        (["--disk", "4"], "head -c 9000000 /dev/zero > x", 122, "disk of 4 MiB full"),
        (["--processes", "6"], "for i in $(seq 12); do sleep 9 & done", 121, "the limit of 6"),
    ],
)
def test_a_command_that_met_a_limit_has_a_code_of_its_own(
    run: Callable[..., Ended], options: list[str], script: str, code: int, says: str
) -> None:
    ended = run("--backend", "oci", *options, *shell(script))
    assert ended.code == code
    error, hint = ended.err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert says in error
    assert hint.startswith("hint: ")


@needs_oci
def test_files_and_mounts_are_seen_inside(run: Callable[..., Ended], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "one.txt").write_text("one\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "two.txt").write_text("two\n")
    ended = run(
        *("--file", str(tmp_path / "one.txt"), "--file", str(tmp_path / "tree")),
        *("--mount", f"{tmp_path}:/mnt/here"),
        *shell("cat one.txt tree/two.txt /mnt/here/one.txt; touch /mnt/here/x || echo read-only"),
    )
    assert (ended.code, ended.out) == (0, b"one\ntwo\none\nread-only\n")


def test_standard_input_is_passed_on() -> None:
    points = [(point.name, point.value, point.group) for point in POINTS]
    code = (
        "from importlib.metadata import EntryPoint\n"
        "from headrace.cli.main import main\n"
        "from headrace.sandbox import registry\n"
        f"points = [EntryPoint(*each) for each in {points!r}]\n"
        "registry.entry_points = lambda group: points\n"
        "main()"
    )
    command = [sys.executable, "-c", code, "sandbox", "exec", *TRUSTED, "--", "cat"]
    sent = bytes(range(256)) * 1000
    done = subprocess.run(command, input=sent, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, sent, b"")


def test_standard_input_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    kept = os.dup(0)
    os.dup2(reading, 0)
    try:
        with pytest.raises(UsageError, match="standard input did not end"):
            sandbox_exec.read_stdin(within_s=0.05)
    finally:
        os.dup2(kept, 0)
        for descriptor in (kept, reading, writing):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--backend", "subprocess"], "lacks isolation namespace (it is trusted)"),
        (["--isolation", "strong"], "no isolation class 'strong'"),
        (["--network", "lan"], "no network 'lan'"),
        (["--network", "full", "--allow", "example.com"], "exclude each other"),
        (["--memory", "64", "--disk", "64"], "disk_mb must be smaller"),
        (["--mount", "nowhere"], "no mount: 'nowhere'"),
        (["--mount", "/no/such:/x"], "not a directory (/no/such)"),
        ([*TRUSTED, "--file", "/no/such"], "there is no such file (/no/such)"),
        (["--backend", "nothing"], "no sandbox backend named 'nothing'"),
    ],
)
def test_what_cannot_be_given_is_refused_with_a_hint(
    run: Callable[..., Ended], options: list[str], says: str
) -> None:
    ended = run(*options, "--", "true")
    assert (ended.code, ended.out) == (Exit.USAGE, b"")
    error, hint = ended.err.splitlines()
    assert says in error
    assert hint.startswith("hint: ")
    assert headrace("sandbox", "ls", "--json").json == []


def test_a_sandbox_that_dies_under_its_command_is_infrastructure() -> None:
    nothing = Capture(b"", 0)
    crash = Result(
        outcome=Outcome.CRASH,
        exit_code=None,
        signal=None,
        stdout=nothing,
        stderr=nothing,
        usage=Usage(wall_s=1.0),
        oom=False,
        epoch=0,
    )
    command = sandbox_exec.Command(argv=("true",), spec=SandboxSpec(), timeout_s=1)
    with pytest.raises(SandboxFailure, match="died under the command"):
        sandbox_exec.show(sandbox_exec.Ended(crash), command)


def test_a_sandbox_that_cannot_be_removed_keeps_its_lease_and_its_result(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    close = PlainBackend.aclose

    async def stuck(self: PlainBackend) -> None:
        await close(self)
        raise SandboxFailure("it will not go")

    monkeypatch.setattr(PlainBackend, "aclose", stuck)
    ended = run(*TRUSTED, "echo", "done")
    assert (ended.code, ended.out) == (0, b"done\n")
    assert "warning: the sandbox was not removed: it will not go" in ended.err
    assert len(headrace("sandbox", "ls", "--json").json) == 1


@pytest.mark.parametrize(
    ("memory_mb", "disk_mb", "expected"),
    [(None, None, (512, 256)), (100, None, (100, 50)), (None, 1000, (2000, 1000)), (9, 3, (9, 3))],
)
def test_files_may_fill_half_of_the_memory_unless_said(
    memory_mb: int | None, disk_mb: int | None, expected: tuple[int, int]
) -> None:
    limits = sandbox_exec.limits_of(memory_mb=memory_mb, disk_mb=disk_mb, cpus=None, processes=None)
    memory, disk = expected
    assert limits == replace(BoxLimits(), memory_mb=memory, disk_mb=disk)


def test_hosts_that_are_allowed_make_an_allow_list() -> None:
    expected = Network(kind="allow-list", allow=("a.example", "b.example:8080"))
    assert sandbox_exec.network_of(None, ["a.example", "b.example:8080"]) == expected
    assert sandbox_exec.network_of(None, []) == sandbox_exec.network_of("none", []) == Network()


# --- ls and reap ---------------------------------------------------------------------------

MANAGER = """
import asyncio, sys, time
from headrace.sandbox.pool.leases import Leases, State
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.spec import Isolation, Network, SandboxSpec

async def main():
    leases = Leases()
    (lease,) = leases.record(["left"], backend="subprocess", spec="0", expires=time.time() + 600)
    spec = SandboxSpec(isolation=Isolation.TRUSTED, network=Network(kind="full"))
    box = await PlainBackend().create(spec, id="left")
    leases.advance(lease, State.LEASED)
    began = await box.exec(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"])
    print(began.stdout.text.strip(), flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.fixture
def manager() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that owns a sandbox, and the id of a process in that."""
    process = subprocess.Popen(
        [sys.executable, "-c", MANAGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    inside = int(process.stdout.readline())
    try:
        yield process, inside
    finally:
        process.kill()
        process.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.kill(inside, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_living_managers_sandbox_is_listed_and_left_alone(
    manager: tuple[subprocess.Popen[str], int],
) -> None:
    process, inside = manager
    (row,) = headrace("sandbox", "ls", "--json").json
    assert (row["id"], row["backend"], row["state"]) == ("left", "subprocess", "leased")
    assert (row["owner_pid"], row["orphan"]) == (process.pid, False)
    assert 0 <= row["age_s"] < 60
    header, line = headrace("sandbox", "ls").out.splitlines()
    assert header.split() == ["ID", "BACKEND", "OWNER", "STATE", "AGE", "EXPIRES", "ORPHAN"]
    assert line.split()[-1] == "no"
    reaped = headrace("sandbox", "reap")
    assert (reaped.code, reaped.out, reaped.err) == (0, "", "nothing was left behind\n")
    assert alive(inside)


def test_what_a_killed_manager_left_is_an_orphan_and_is_removed(
    manager: tuple[subprocess.Popen[str], int], state: Path
) -> None:
    process, inside = manager
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert alive(inside)
    (row,) = headrace("sandbox", "ls", "--json").json
    assert row["orphan"] is True
    reaped = headrace("sandbox", "reap", "--json")
    assert reaped.code == 0
    assert reaped.json["removed"] == [{"id": "left", "backend": "subprocess"}]
    assert reaped.json["failed"] == []
    assert not alive(inside)
    assert not (state / "subprocess" / "left").exists()
    assert headrace("sandbox", "ls", "--json").json == []
    assert headrace("sandbox", "ls").err == "no sandboxes\n"


def test_what_will_not_go_is_named_and_kept(
    manager: tuple[subprocess.Popen[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = manager
    process.send_signal(signal.SIGKILL)
    process.wait()

    def refuse(self: PlainBackend, ids: Sequence[str]) -> list[str]:
        raise SandboxFailure("it is busy")

    with monkeypatch.context() as broken:
        broken.setattr(PlainBackend, "reap", refuse)
        ended = headrace("sandbox", "reap")
    assert (ended.code, ended.out) == (Exit.INFRASTRUCTURE, "")
    assert "left (subprocess): it is busy" in ended.err
    assert "hint: " in ended.err
    (row,) = headrace("sandbox", "ls", "--json").json
    assert (row["id"], row["state"], row["details"]["failure"]) == ("left", "closing", "it is busy")


def test_a_sandbox_of_a_backend_that_is_not_here_is_named() -> None:
    with Leases() as leases:
        leases.record(["far"], backend="elsewhere", spec="0", expires=time.time() - 60)
    ended = headrace("sandbox", "reap", "--json")
    assert ended.code == Exit.INFRASTRUCTURE
    (failed,) = ended.json["failed"]
    assert (failed["id"], failed["backend"]) == ("far", "elsewhere")


# --- doctor --------------------------------------------------------------------------------


def finding(judgement: str, reason: str = "") -> Finding:
    return Finding(
        name=f"a thing {judgement}",
        says="It does a thing.",
        judgement=judgement,  # pyright: ignore[reportArgumentType]
        reason=reason,
        seconds=0.1,
    )


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Makes the conformance suite find the given, and OCI sandboxes possible; who was checked."""

    def give(*findings: Finding, possible: bool = True) -> list[str]:
        names: list[str] = []

        async def check(
            backend: Any, *, image: str | None, told: Callable[[int, int], None]
        ) -> Report:
            if image == "none":
                raise UsageError("it needs another image")
            told(0, 1)
            names.append(backend.name)
            return Report(
                backend=backend.name,
                image="host",
                capabilities=backend.capabilities(),
                findings=findings,
                costs=Costs(create=31.4, exec=2.72, close=10.0),
            )

        monkeypatch.setattr(conformance, "check", check)
        why = None if possible else "no OCI runtime: apt-get install crun"
        monkeypatch.setattr(OciBackend, "available", lambda self: why)  # pyright: ignore
        monkeypatch.setattr(OciBackend, "runtime", None)
        return names

    return give


def test_doctor_checks_the_default_backend_and_shows_all(
    checked: Callable[..., list[str]],
) -> None:
    names = checked(finding("passed"), finding("unchecked", "no compiler inside"))
    shown = headrace("sandbox", "doctor", "--json")
    assert (shown.code, names) == (0, ["oci"])
    assert shown.json["default"] == "oci"
    oci, plain = shown.json["backends"]
    assert (oci["name"], oci["available"], oci["reason"]) == ("oci", True, None)
    assert oci["capabilities"]["isolation"] == "namespace"
    assert oci["capabilities"]["limits"] == [
        *("cpus", "disk_mb", "memory_mb", "open_files", "processes")
    ]
    assert [each["judgement"] for each in oci["checks"]] == ["passed", "unchecked"]
    assert oci["costs_ms"]["create"] == 31.4
    assert oci["costs_ms"]["fork"] is None
    assert (plain["name"], plain["checks"]) == ("subprocess", None)
    page = headrace("sandbox", "doctor").out
    assert "ok    oci         the default" in page
    assert "costs       create 31 ms, exec 2.7 ms, close 10 ms" in page
    assert "checks      1 passed, 1 unchecked" in page
    assert "unchecked   a thing unchecked: no compiler inside" in page
    assert max(map(len, page.splitlines())) < 80


def test_doctor_exits_3_for_a_promise_that_is_broken(checked: Callable[..., list[str]]) -> None:
    checked(finding("passed"), finding("failed", "it did not " + "go " * 40))
    ended = headrace("sandbox", "doctor")
    assert ended.code == Exit.GATE
    assert "fail  oci" in ended.out
    assert "failed      a thing failed: it did not go go" in ended.out
    assert max(map(len, ended.out.splitlines())) < 80
    assert ended.err.startswith("error: checks failed: oci\nhint: ")


def test_doctor_checks_what_it_is_told_to(checked: Callable[..., list[str]]) -> None:
    names = checked(finding("passed"))
    assert headrace("sandbox", "doctor", "--backend", "subprocess").code == 0
    assert headrace("sandbox", "doctor", "--all").code == 0
    assert headrace("sandbox", "doctor", "--quick").code == 0
    assert names == ["subprocess", "oci", "subprocess"]
    refused = headrace("sandbox", "doctor", "--backend", "oci", "--image", "none")
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert "none made: it needs another" in headrace("sandbox", "doctor", "--image", "none").out
    unknown = headrace("sandbox", "doctor", "--backend", "nothing")
    assert unknown.code == Exit.USAGE
    assert unknown.err.endswith("hint: one of: oci, subprocess\n")


@pytest.mark.parametrize("arguments", [[], ["--quick"], ["--backend", "oci"]])
def test_doctor_exits_5_where_nothing_that_isolates_works(
    checked: Callable[..., list[str]], arguments: list[str]
) -> None:
    names = checked(finding("passed"), possible=False)
    ended = headrace("sandbox", "doctor", *arguments)
    assert (ended.code, names) == (Exit.INFRASTRUCTURE, [])
    assert "no    oci         no OCI runtime: apt-get install crun" in ended.out
    assert "does not work here" in ended.err or "no backend that isolates works" in ended.err


def test_doctor_shows_an_entry_point_that_gives_no_backend(
    checked: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(finding("passed"))
    broken = EntryPoint("theirs", "no.such.module:Backend", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [*POINTS, broken])  # pyright: ignore
    shown = headrace("sandbox", "doctor", "--json")
    assert shown.code == 0
    assert [each["name"] for each in shown.json["broken"]] == ["theirs"]
    assert "no    theirs      broken: ModuleNotFoundError" in headrace("sandbox", "doctor").out


def test_a_backend_that_does_not_end_well_fails_its_checks(
    checked: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(finding("passed"))

    async def stuck(self: OciBackend) -> None:
        raise SandboxFailure("the keeper did not end")

    monkeypatch.setattr(OciBackend, "aclose", stuck)
    ended = headrace("sandbox", "doctor")
    assert ended.code == Exit.GATE
    assert "failed      the end: the keeper did not end" in ended.out


@pytest.mark.parametrize(
    ("possible", "found", "detail"),
    [
        (True, "ok", "oci (namespace)"),
        (False, "warn", "none that isolates; oci: no OCI runtime: apt-get install crun"),
    ],
)
def test_the_doctor_of_the_machine_has_a_row_for_sandboxes(
    checked: Callable[..., list[str]], possible: bool, found: str, detail: str
) -> None:
    checked(possible=possible)
    (row,) = doctor._sandbox()  # pyright: ignore[reportPrivateUsage]
    assert (row.name, row.state, row.detail) == ("sandbox", found, detail)


def test_a_program_is_called_as_it_calls_itself(tmp_path: Path) -> None:
    runtime = tmp_path / "crun"
    runtime.write_text("#!/bin/sh\necho crun version 1.8.1\necho commit: 1\n")
    runtime.chmod(0o755)
    assert sandbox_doctor.program(OciBackend(str(runtime))) == "crun 1.8.1"
    assert sandbox_doctor.program(PlainBackend()) == ""


# --- the documentation ---------------------------------------------------------------------

DOCS = (Path(__file__).parents[2] / "docs" / "sandboxes.md").read_text()


@needs_oci
def test_the_example_in_the_docs_prints_what_they_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "example.py").write_text(DOCS.split("```python\n")[1].split("```")[0])
    runpy.run_path(str(tmp_path / "example.py"), run_name="__main__")
    assert capsys.readouterr().out == "result 0 42\nsolve.py\nsolve.py\n"
    assert "It prints `result 0 42`, then `solve.py` twice." in DOCS


@pytest.mark.parametrize("outcome", Outcome)
def test_the_docs_give_every_outcome_the_exit_code_that_it_has(outcome: Outcome) -> None:
    (row,) = [line for line in DOCS.splitlines() if line.startswith(f"| `{outcome}` |")]
    code = row.rstrip("| ").rpartition("| ")[2]
    whose = "infrastructure" if not outcome.by_candidate else "candidate"
    assert f"| {whose}" in row
    if outcome is Outcome.CRASH:
        assert code == str(Exit.INFRASTRUCTURE.value)
    elif outcome is not Outcome.RESULT:
        assert code == str(sandbox_exec.ENDINGS[outcome])
        assert f"{code}  it" in headrace("sandbox", "exec", "--help").out


@pytest.mark.parametrize("name", [*registry.PREFERENCE])
def test_the_docs_name_every_backend(name: str) -> None:
    assert f"`{name}`" in DOCS
