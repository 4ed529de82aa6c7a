"""The conformance suite: our backends keep their promises, and one that does not is told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.errors import UsageError
from headrace.sandbox import (
    Backend,
    BoxLimits,
    Capabilities,
    Capture,
    ExecLimits,
    Isolation,
    Network,
    Outcome,
    Result,
    Sandbox,
    SandboxFailure,
    SandboxRefused,
    SandboxSpec,
    SnapshotRef,
    User,
)
from headrace.sandbox.conformance import PROMISES, Finding, Report, check, table
from headrace.sandbox.oci.backend import OciBackend
from headrace.sandbox.plain import PlainBackend
from headrace.sandbox.sandlock.backend import SandlockBackend

T = TypeVar("T")
EXEC_LIMITS = ExecLimits()


@pytest.fixture(autouse=True, scope="module")
def _state(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path_factory.mktemp("s")))
        yield


def checked(backend: Backend, **how: Any) -> Report:
    async def run() -> Report:
        try:
            return await check(backend, **how)
        finally:
            await backend.aclose()

    return asyncio.run(run())


def works(backend: Backend) -> Backend:
    if reason := backend.available():
        pytest.skip(f"{backend.name}: {reason}")
    return backend


def judged(report: Report, judgement: str) -> set[str]:
    return {found.name for found in report.findings if found.judgement == judgement}


# --- ours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_the_oci_backend_keeps_every_promise(runtime: str) -> None:
    report = checked(works(OciBackend(runtime)))
    assert judged(report, "failed") == set(), report.failed
    assert judged(report, "undeclared") == set()
    assert judged(report, "unchecked") == set()
    assert report.costs is not None
    assert report.costs.snapshot is not None


def test_child_processes_keep_what_they_promise() -> None:
    report = checked(PlainBackend())
    assert judged(report, "failed") == set(), report.failed
    assert judged(report, "undeclared") == {
        *("memory limit", "process limit", "disk limit", "open files limit", "processor limit"),
        *("separate sandboxes", "users", "no network", "allowed hosts"),
    }


@pytest.mark.slow
def test_sandlock_keeps_what_it_promises() -> None:
    report = checked(works(SandlockBackend()))
    assert judged(report, "failed") == set(), report.failed


# --- broken ones ---------------------------------------------------------------------------


class Bent:
    """A sandbox that does what another one does, but for one thing."""

    def __init__(self, backend: BentBackend, box: Sandbox) -> None:
        self._backend, self._box = backend, box

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def epoch(self) -> int:
        return self._box.epoch

    @property
    def spec(self) -> SandboxSpec:
        return self._box.spec

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: User = "agent",
        limits: ExecLimits = EXEC_LIMITS,
    ) -> Result:
        how = self._backend.how
        result = await self._box.exec(
            argv,
            stdin=b"" if how == "no input" else stdin,
            timeout_s=timeout_s,
            env=None if how == "no environment" else env,
            cwd=None if how == "no directory" else cwd,
            user="agent" if how == "one user" else user,
            limits=EXEC_LIMITS if how == "no limits of a command" else limits,
        )
        return self._bent(result)

    def _bent(self, result: Result) -> Result:
        how = self._backend.how
        change = dataclasses.replace
        if how == "codes above 127 are signals" and (result.exit_code or 0) > 127:
            return change(result, exit_code=None, signal=(result.exit_code or 0) - 128)
        if how == "signals are codes" and result.signal is not None:
            return change(result, exit_code=128 + result.signal, signal=None)
        if how == "streams are text":
            text = result.stdout.text.encode()
            return change(result, stdout=Capture(text, len(text), result.stdout.omitted))
        if how == "127 is 1" and result.exit_code == 127:
            return change(result, exit_code=1)
        if how == "memory is a result" and result.outcome is Outcome.MEMORY:
            return change(result, outcome=Outcome.RESULT)
        if how == "floods are results" and result.outcome is Outcome.OUTPUT:
            return change(result, outcome=Outcome.RESULT)
        return result

    async def put(self, archive: Path | bytes, to: str = "", *, user: User = "agent") -> None:
        if self._backend.how == "archives are taken by half":
            try:
                await self._box.put(archive, to, user=user)
            except UsageError:
                return
        else:
            await self._box.put(archive, to, user=user)

    async def put_file(self, path: str, data: bytes, *, user: User = "agent") -> None:
        cut = data[: 2**20] if self._backend.how == "big files are cut" else data
        await self._box.put_file(path, cut, user=user)

    async def get(self, path: str, into: Path, *, limit_mb: int = 1024) -> None:
        limit_mb = 1024 if self._backend.how == "reads have no limit" else limit_mb
        await self._box.get(path, into, limit_mb=limit_mb)

    async def get_file(self, path: str, *, limit_mb: int = 16) -> bytes:
        if self._backend.how == "missing files are failures":
            try:
                return await self._box.get_file(path, limit_mb=limit_mb)
            except UsageError as error:
                raise SandboxFailure("no file", where=path) from error
        return await self._box.get_file(path, limit_mb=limit_mb)

    async def snapshot(self) -> SnapshotRef:
        return await self._box.snapshot()

    async def restore(self, ref: SnapshotRef) -> None:
        if self._backend.how != "restore does nothing":
            await self._box.restore(ref)

    async def fork(self, count: int, *, ids: Sequence[str] | None = None) -> list[Sandbox]:
        if self._backend.how == "forks are one":
            return [self for _ in range(count)]
        ids = None if self._backend.how == "forks choose their names" else ids
        return [Bent(self._backend, box) for box in await self._box.fork(count, ids=ids)]

    async def health(self, *, timeout_s: float = 5.0) -> None:
        await self._box.health(timeout_s=timeout_s)

    async def close(self) -> None:
        if self._backend.how != "close is for show":
            await self._box.close()

    @property
    def real(self) -> Sandbox:
        return self._box


class BentBackend:
    """The oci backend, but for one thing: `how`."""

    name = "bent"

    def __init__(self, how: str) -> None:
        self.how = how
        self._backend = OciBackend()

    def available(self) -> str | None:
        return self._backend.available()

    def capabilities(self) -> Capabilities:
        can = self._backend.capabilities()
        if self.how == "claims of a virtual machine":
            return dataclasses.replace(can, isolation=Isolation.VIRTUAL_MACHINE)
        if self.how == "full network is not declared":
            return dataclasses.replace(can, networks=can.networks - {"full"})
        return can

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        if self.how == "limits are forgotten":
            spec = dataclasses.replace(spec, limits=BoxLimits())
        if self.how == "network is full":
            spec = dataclasses.replace(spec, network=Network(kind="full"))
        if self.how == "init is forgotten":
            spec = dataclasses.replace(spec, init=())
        if self.how == "classes are degraded":
            spec = dataclasses.replace(spec, isolation=Isolation.NAMESPACE)
        return Bent(self, await self._backend.create(spec, id=id))

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        assert isinstance(sandbox, Bent)
        if self.how == "recycling is for show":
            return sandbox
        again = await self._backend.recycle(sandbox.real, epoch=epoch)
        return None if again is None else Bent(self, again)

    def reap(self, ids: Sequence[str]) -> list[str]:
        return [*ids] if self.how == "reaping is for show" else self._backend.reap(ids)

    async def aclose(self) -> None:
        await self._backend.aclose()


BENT = {
    "codes above 127 are signals": "exit codes",
    "signals are codes": "signals",
    "streams are text": "streams",
    "no input": "standard input",
    "no environment": "environment",
    "no directory": "working directory",
    "one user": "users",
    "no limits of a command": "file size",
    "127 is 1": "missing program",
    "memory is a result": "memory limit",
    "floods are results": "output flood",
    "archives are taken by half": "hostile archives",
    "big files are cut": "single files",
    "reads have no limit": "files that are none",
    "missing files are failures": "files that are none",
    "restore does nothing": "snapshots",
    "forks are one": "forks",
    "forks choose their names": "forks",
    "close is for show": "closing",
    "claims of a virtual machine": "it works",
    "full network is not declared": "full network",
    "limits are forgotten": "disk limit",
    "network is full": "no network",
    "init is forgotten": "processes end at a snapshot",
    "classes are degraded": "classes above are refused",
    "recycling is for show": "recycling",
    "reaping is for show": "reaping",
}


@pytest.mark.parametrize("how", list(BENT))
def test_a_backend_that_breaks_a_promise_fails_at_that_one(how: str) -> None:
    report = checked(works(BentBackend(how)), only={BENT[how]} - {"it works"}, measure=False)
    assert BENT[how] in judged(report, "failed"), report.findings
    assert not report.ok


def test_breaking_one_promise_fails_no_other() -> None:
    """A sample: the cheap ones beside a broken one."""
    others = {"exit codes", "streams", "environment", "arguments", "archives", "broken archives"}
    report = checked(
        works(BentBackend("signals are codes")), only=others | {"signals"}, measure=False
    )
    assert judged(report, "failed") == {"signals"}
    assert judged(report, "passed") == others | {"it works"}


# --- without a sandbox ---------------------------------------------------------------------


class Absent:
    """A backend that does not work here, or in which nothing works."""

    name = "absent"

    def __init__(
        self, create: Callable[[], Coroutine[Any, Any, Sandbox]], reason: str | None = None
    ) -> None:
        self._create, self._reason = create, reason

    def available(self) -> str | None:
        return self._reason

    def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation=Isolation.TRUSTED,
            limits=frozenset(),
            networks=frozenset({"full"}),
            images=("theirs",),
        )

    async def create(self, spec: SandboxSpec, *, id: str) -> Sandbox:
        return await self._create()

    async def recycle(self, sandbox: Sandbox, *, epoch: int) -> Sandbox | None:
        return None

    def reap(self, ids: Sequence[str]) -> list[str]:
        return [*ids]

    async def aclose(self) -> None:
        return None


async def mistaken() -> Sandbox:
    return {}["key"]


def test_where_no_sandbox_can_be_made_that_is_the_finding() -> None:
    report = checked(Absent(mistaken), image="theirs:1")
    assert [(found.name, found.judgement) for found in report.findings] == [("it works", "failed")]
    assert "KeyError" in report.findings[0].reason
    assert report.costs is None
    assert not report.ok


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(SandboxRefused, match="no such machine"):
        checked(Absent(mistaken, "no such machine"))
    with pytest.raises(UsageError, match="needs an image"):
        checked(Absent(mistaken))
    with pytest.raises(UsageError, match="no promise 'typo'"):
        checked(Absent(mistaken), image="theirs:1", only={"typo", "zeal"})


def test_a_table_has_what_is_declared_what_was_found_and_what_it_costs() -> None:
    report = checked(PlainBackend(), only={"exit codes", "no network"})
    rows = table(report)
    assert [row.name for row in rows if row.kind == "promise"] == [
        *("it works", "exit codes", "no network"),
    ]
    by_name = {row.name: row for row in rows if row.kind != "cost"}
    assert by_name["isolation"].value == "trusted"
    assert by_name["exit codes"].value == "passed"
    assert by_name["no network"].value == "undeclared"
    assert by_name["no network"].note == "no network of the kind none"
    assert by_name["fork"].value == "emulated"
    costs = [row for row in rows if row.kind == "cost"]
    assert [row.name for row in costs] == [
        *("create", "exec", "snapshot", "restore", "fork", "close"),
    ]
    assert all(row.value.endswith(" ms") for row in costs)


def test_every_promise_has_a_name_and_says_something() -> None:
    names = [promise.name for promise in PROMISES]
    assert len(set(names)) == len(names)
    assert all(promise.says.endswith(".") for promise in PROMISES)
    found = Finding(name="n", says="s", judgement="unchecked", reason="r", seconds=0.0)
    can = PlainBackend().capabilities()
    report = Report(backend="b", image="i", capabilities=can, findings=(found,), costs=None)
    assert report.ok
    assert [row.kind for row in table(report)].count("cost") == 0
