"""Who owns which sandbox, in a file that outlives every owner: `state_root()/leases.db`.

One row a sandbox, written before anything of it exists and removed after all of it is gone, so
that whatever a killed manager left behind is named here. Several processes use the file at
once. A row is changed only by who holds it: its owner and its epoch are the fencing token, and
a holder whose row was taken from it meets `SandboxGone`. Known by the pool, the reaper and the
command line; knows no backend.
"""

from __future__ import annotations

import enum
import functools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from headrace.errors import StorageError
from headrace.sandbox.spec import Owned, SandboxGone
from headrace.sandbox.state import state_root

__all__ = ["Lease", "Leases", "Owner", "State"]

_VERSION = 1
_BUSY_S = 10.0
_GRACE_S = 5.0
"""A living owner closes what expired itself; others wait this long before they do."""
_SILENT_S = 120.0
"""An owner in another process namespace, which cannot be seen, is dead after this silence."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS leases (
    id TEXT PRIMARY KEY NOT NULL,
    backend TEXT NOT NULL,
    spec TEXT NOT NULL,
    owner TEXT NOT NULL,
    state TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    created REAL NOT NULL,
    beat REAL NOT NULL,
    expires REAL NOT NULL,
    details TEXT NOT NULL
) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
"""
_COLUMNS = (
    *("id", "backend", "spec", "owner", "state", "epoch"),
    *("created", "beat", "expires", "details"),
)
_ALL = ", ".join(_COLUMNS)
_CHANGING = ("owner", "state", "epoch", "beat", "expires", "details")
_HELD = "id = :id AND owner = :owner AND epoch = :epoch"


class State(enum.StrEnum):
    """What a sandbox is doing. STARTING and CLOSING expire too: nothing hangs there for ever."""

    STARTING = "starting"
    WARM = "warm"
    LEASED = "leased"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One process of one boot: a reused process id is somebody else.

    `started` is in clock ticks since boot; `space` is the namespace that `pid` belongs to.

    >>> Owner.parse(Owner.here().key) == Owner.here()
    True
    """

    pid: int
    started: int
    boot: str
    space: str

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(pid=pid, started=_started(pid) or 0, boot=_boot(), space=_space())

    @classmethod
    def parse(cls, key: str) -> Owner:
        """The owner of that `key`."""
        pid, started, boot, space = key.split(" ")
        return cls(pid=int(pid), started=int(started), boot=boot, space=space)

    @property
    def key(self) -> str:
        """All of it as one string without line breaks."""
        return f"{self.pid} {self.started} {self.boot} {self.space}"

    @property
    def visible(self) -> bool:
        """Whether its life can be judged from here."""
        return self.boot != _boot() or self.space == _space()

    @property
    def dead(self) -> bool:
        """Whether it certainly runs no more; a zombie does not."""
        return self.boot != _boot() or (
            self.space == _space() and _started(self.pid) != self.started
        )


def _started(pid: int) -> int | None:
    """When a process was started (field 22 of its stat), None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


@functools.cache
def _space() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row. Times are seconds of the epoch; `epoch` counts the changes of hands.

    `beat` is the owner's last sign of life, `expires` when the sandbox must be gone (while
    starting or closing: when that must be over).
    """

    id: str
    backend: str
    spec: str
    owner: Owner
    state: State
    epoch: int
    created: float
    beat: float
    expires: float
    details: Mapping[str, str] = field(default_factory=dict[str, str])

    def abandoned(self, now: float) -> bool:
        """Whether its owner, if it lives, does not look after it: let it expire, or is silent."""
        if now >= self.expires + _GRACE_S:
            return True
        return not self.owner.visible and now >= self.beat + _SILENT_S


class Leases:
    """The leases of this user's sandboxes; `path` and `clock` (epoch seconds) are for tests.

    May be used from several threads, never across a fork (SQLite's locks would not hold). Every
    verb raises StorageError if the file cannot be used.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root, Leases(Path(root) / "leases.db") as leases:
    ...     (lease,) = leases.record(["a"], backend="plain", spec="0", expires=time.time() + 60)
    ...     leases.take(lease).epoch
    1
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = state_root() / "leases.db" if path is None else path
        self.clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with self._guard():
            self._owner = Owner.here()
            self._connection = self._open()

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the rows stay. Idempotent."""
        with self._lock:
            if self._connection is not None and self._owner.pid == os.getpid():
                self._connection.close()
                self._connection = None

    # --- a sandbox's life ------------------------------------------------------------------

    def record(
        self,
        ids: Sequence[str],
        *,
        backend: str,
        spec: str,
        expires: float,
        details: Mapping[str, str] | None = None,
    ) -> list[Lease]:
        """Say that these sandboxes are about to exist; all or none. StorageError for a known id."""
        now = self.clock()
        with self._write() as connection:
            leases = [
                Lease(
                    id=id,
                    backend=backend,
                    spec=spec,
                    owner=self._owner,
                    state=State.STARTING,
                    epoch=0,
                    created=now,
                    beat=now,
                    expires=expires,
                    details=dict(details or {}),
                )
                for id in ids
            ]
            rows = [[_value(lease, name) for name in _COLUMNS] for lease in leases]
            places = ", ".join("?" * len(_COLUMNS))
            connection.executemany(f"INSERT INTO leases ({_ALL}) VALUES ({places})", rows)
        return leases

    def advance(self, lease: Lease, state: State, *, expires: float | None = None) -> Lease:
        """The lease in another state. SandboxGone if it is no longer held."""
        expires = lease.expires if expires is None else expires
        return self._change(lease, replace(lease, state=state, expires=expires))

    def take(self, lease: Lease, *, expires: float | None = None) -> Lease:
        """The lease in use under the next epoch. SandboxGone if it is no longer held."""
        expires = lease.expires if expires is None else expires
        taken = replace(lease, state=State.LEASED, epoch=lease.epoch + 1, expires=expires)
        return self._change(lease, taken)

    def forget(self, lease: Lease) -> bool:
        """Remove the row, all of whose sandbox is gone; False if it was no longer held."""
        with self._statement() as connection:
            held = {name: _value(lease, name) for name in ("id", "owner", "epoch")}
            removed = connection.execute(f"DELETE FROM leases WHERE {_HELD}", held)
        return removed.rowcount == 1

    def renew(self) -> dict[str, int]:
        """A sign of life of this process; the ids it still owns, and their epochs."""
        with self._write() as connection:
            mine = {"owner": self._owner.key, "beat": self.clock()}
            connection.execute("UPDATE leases SET beat = :beat WHERE owner = :owner", mine)
            rows = connection.execute("SELECT id, epoch FROM leases WHERE owner = :owner", mine)
            return dict(cast(Iterator[tuple[str, int]], rows))

    # --- what others left ------------------------------------------------------------------

    def all(self) -> list[Lease]:
        """Every row, oldest first."""
        with self._statement() as connection:
            rows = connection.execute(f"SELECT {_ALL} FROM leases ORDER BY created, id")
            return [_lease(row) for row in rows]

    def owned(self, now: float | None = None) -> list[Owned]:
        """Every sandbox that exists or may, for people to see."""
        leases = self.all()
        orphans = {lease.id for lease in self._orphans(leases, now)}
        return [
            Owned(
                id=lease.id,
                backend=lease.backend,
                owner_pid=lease.owner.pid,
                state=lease.state,
                created=lease.created,
                expires=lease.expires,
                orphan=lease.id in orphans,
                details={**lease.details, "epoch": str(lease.epoch), "spec": lease.spec},
            )
            for lease in leases
        ]

    def orphans(self, now: float | None = None) -> list[Lease]:
        """The rows that nobody looks after any more: a dead owner's, and abandoned ones."""
        return self._orphans(self.all(), now)

    def claim(self, lease: Lease, *, expires: float) -> Lease | None:
        """Make an orphan one's own, to close it by `expires`.

        None if it is no longer as it was read: another claimed it, or its owner lives after all.
        """
        claimed = replace(
            lease,
            owner=self._owner,
            state=State.CLOSING,
            epoch=lease.epoch + 1,
            beat=self.clock(),
            expires=expires,
        )
        unchanged = f"{_HELD} AND beat = :beat AND expires = :expires"
        return claimed if self._update(lease, claimed, unchanged) else None

    def release(self, lease: Lease, why: str) -> None:
        """Give up closing for now: the row stays, an orphan that any reaper may claim again."""
        failures = int(lease.details.get("failures", "0")) + 1
        details = {**lease.details, "failures": str(failures), "failure": why}
        expires = min(lease.expires, self.clock())
        released = replace(lease, state=State.CLOSING, expires=expires, details=details)
        self._update(lease, released, _HELD)

    def _orphans(self, leases: Sequence[Lease], now: float | None) -> list[Lease]:
        now = self.clock() if now is None else now
        dead = {owner for owner in {lease.owner for lease in leases} if owner.dead}
        return [lease for lease in leases if lease.owner in dead or lease.abandoned(now)]

    # --- the file --------------------------------------------------------------------------

    def _change(self, old: Lease, new: Lease) -> Lease:
        if not self._update(old, new, _HELD):
            raise SandboxGone(
                f"sandbox {old.id} is no longer held by this process",
                where=str(self.path),
                hint="its lease expired, or its owner was taken for dead",
            )
        return new

    def _update(self, old: Lease, new: Lease, condition: str) -> bool:
        changed = [name for name in _CHANGING if getattr(new, name) != getattr(old, name)]
        assignments = ", ".join(f"{name} = :new_{name}" for name in changed or ["id"])
        values = {name: _value(old, name) for name in ("id", "owner", "epoch", "beat", "expires")}
        values |= {f"new_{name}": _value(new, name) for name in changed or ["id"]}
        with self._statement() as connection:
            done = connection.execute(f"UPDATE leases SET {assignments} WHERE {condition}", values)
        return done.rowcount == 1

    @contextmanager
    def _write(self) -> Generator[sqlite3.Connection]:
        """One transaction."""
        with self._statement() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _statement(self) -> Generator[sqlite3.Connection]:
        """For one statement, which is a transaction of its own."""
        with self._lock, self._guard():
            if self._connection is None or self._owner.pid != os.getpid():
                raise sqlite3.ProgrammingError("they are closed, or were opened before a fork")
            yield self._connection

    @contextmanager
    def _guard(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the leases of sandboxes cannot be used: {error}",
                where=str(self.path),
                hint=f"check the disk and the rights of {self.path.parent}; a damaged file may be "
                "moved away once no sandbox runs",
            ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"version {version} of them is not known here")
            # A sandbox ends with the system, so no row need survive a crash of the system: no
            # fsync, whose pauses would be felt in every start of a sandbox.
            connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection


def _value(lease: Lease, name: str) -> str | int | float:
    """What is stored of that field."""
    match getattr(lease, name):
        case Owner() as owner:
            return owner.key
        case State() as state:
            return state.value
        case str() | int() | float() as plain:
            return plain
        case details:
            return json.dumps(dict(details))


def _lease(row: tuple[object, ...]) -> Lease:
    id, backend, spec, owner, state, epoch, created, beat, expires, details = row
    return Lease(
        id=cast(str, id),
        backend=cast(str, backend),
        spec=cast(str, spec),
        owner=Owner.parse(cast(str, owner)),
        state=State(cast(str, state)),
        epoch=cast(int, epoch),
        created=cast(float, created),
        beat=cast(float, beat),
        expires=cast(float, expires),
        details=cast(dict[str, str], json.loads(cast(str, details))),
    )
