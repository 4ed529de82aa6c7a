"""Records of the trajectory log: what each says, as bytes and back, and the facts an index keeps.

A payload is

    b"hr2" [kind: 1 byte] [u32 length] [header: JSON, `length` bytes] [arrays]

with arrays (little-endian, see `arrays`) after trajectories only. Kinds: A a group was admitted,
T an attempt, t an attempt that counts once its wave is committed, W that commit, V a verdict,
C groups were consumed, R consumption after a step is void, M a mark: everything before it is
durable. Payloads of the first format are bare JSON, of attempts (t) and commits (W); they are
read for ever and written no more.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticSerializationError, to_json

from headrace.store.arrays import ArrayReader, ArrayWriter
from headrace.store.codec import (
    task_from_json,
    task_to_json,
    trajectory_from_json,
    trajectory_to_json,
    verdict_from_json,
    verdict_to_json,
)
from headrace.store.files import parse_json
from headrace.store.ledger import Consumed, Rewound
from headrace.types import Json, Task, Trajectory, Verdict, VerifierRef

__all__ = [
    "MARK",
    "Admitted",
    "AdmittedFact",
    "AttemptFact",
    "Fact",
    "Judged",
    "JudgedFact",
    "Parsed",
    "Record",
    "WaveFact",
    "admitted_of",
    "admitted_to_json",
    "attempt_id",
    "encode",
    "encode_member",
    "encode_rewound",
    "encode_wave",
    "fact_from_json",
    "fact_of",
    "fact_to_json",
    "facts_of_unit",
    "header_text",
    "kind_of",
    "lengths_of",
    "names_of",
    "parse",
    "split_id",
    "trajectory_of",
    "verdict_of",
]

_MAGIC = b"hr2"
_LENGTH = struct.Struct("<I")
_START = len(_MAGIC) + 1 + _LENGTH.size
_OLD_COMMIT = b'{"commit":'
MARK = _MAGIC + b"M" + _LENGTH.pack(0)
"""The payload of a mark."""

_TASKS = 64
"""Tasks whose JSON is remembered: those of the groups that come in now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A group was given a slot: `size` attempts at `task`, the `position`-th group of the run
    (from 0), while the policy had `version`."""

    group: str
    size: int
    task: Task
    position: int
    version: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict on a stored attempt, `trajectory` being its id."""

    trajectory: str
    verdict: Verdict


Record = Admitted | Trajectory | Judged | Consumed


# --- facts: what an index remembers of a record --------------------------------------------


@dataclass(frozen=True, slots=True)
class AdmittedFact:
    group: str


@dataclass(frozen=True, slots=True)
class JudgedFact:
    """A verdict on `trajectory`; `inside`: it is part of the attempt's own record."""

    trajectory: str
    verifier: VerifierRef
    scored: bool
    inside: bool = False


@dataclass(frozen=True, slots=True)
class AttemptFact:
    group: str
    attempt: int
    verdict: JudgedFact | None = None


@dataclass(frozen=True, slots=True)
class WaveFact:
    key: str
    trajectories: tuple[str, ...]


Fact = AdmittedFact | AttemptFact | JudgedFact | WaveFact | Consumed | Rewound


def attempt_id(group: str, attempt: int) -> str:
    return f"{group}/{attempt}"


def split_id(trajectory: str) -> tuple[str, int] | None:
    """Group and attempt of a trajectory's id; None for what is none."""
    group, slash, attempt = trajectory.rpartition("/")
    try:
        number = int(attempt)
    except ValueError:
        return None
    return (group, number) if slash and attempt_id(group, number) == trajectory else None


def fact_of(record: Record) -> Fact:
    match record:
        case Admitted():
            return AdmittedFact(record.group)
        case Trajectory():
            verdict = record.verdict
            inside = None if verdict is None else judged_fact(record.id, verdict, inside=True)
            return AttemptFact(record.group, record.attempt, inside)
        case Judged():
            return judged_fact(record.trajectory, record.verdict)
        case Consumed():
            return record


def names_of(fact: Fact) -> list[Hashable]:
    """The names under which a record counts once."""
    match fact:
        case AttemptFact(group, attempt):
            return [("attempt", attempt_id(group, attempt))]
        case AdmittedFact(group):
            return [("admitted", group)]
        case JudgedFact(trajectory, verifier, scored):
            return [("verdict", trajectory, verifier, scored)]
        case WaveFact(key):
            return [("wave", key)]
        case Consumed(groups=groups):
            return [("consumed", group) for group in groups]
        case Rewound():
            return []


def judged_fact(trajectory: str, verdict: Verdict, *, inside: bool = False) -> JudgedFact:
    return JudgedFact(trajectory, verdict.verifier, verdict.score is not None, inside)


def fact_to_json(fact: Fact) -> Json:
    """A fact as a JSON list, its kind first. Verdicts inside of attempts are part of these."""
    match fact:
        case AdmittedFact():
            return ["A", fact.group]
        case AttemptFact(group, attempt, inside):
            if inside is None:
                return ["T", group, attempt]
            ref = inside.verifier
            return ["T", group, attempt, ref.id, ref.version, inside.scored]
        case JudgedFact(trajectory, ref, scored):
            return ["V", trajectory, ref.id, ref.version, scored]
        case WaveFact():
            return ["W", fact.key, list(fact.trajectories)]
        case Consumed():
            return ["C", fact.step, fact.version, list(fact.groups), fact.reason]
        case Rewound():
            return ["R", fact.step]


def fact_from_json(value: Json) -> Fact:
    """The fact that `fact_to_json` made `value` from. ValueError for anything else."""
    match value:
        case ["A", str() as group]:
            return AdmittedFact(group)
        case ["T", str() as group, int() as attempt]:
            return AttemptFact(group, attempt)
        case ["T", str() as group, int() as attempt, str() as name, str() as version, bool(scored)]:
            ref, trajectory = VerifierRef(name, version), attempt_id(group, attempt)
            return AttemptFact(group, attempt, JudgedFact(trajectory, ref, scored, inside=True))
        case ["V", str() as trajectory, str() as name, str() as version, bool(scored)]:
            return JudgedFact(trajectory, VerifierRef(name, version), scored)
        case ["W", str() as key, list() as trajectories]:
            return WaveFact(key, tuple(map(str, trajectories)))
        case ["C", int() as step, int() as version, list() as groups, str() | None as reason]:
            names = tuple(map(str, groups))
            return Consumed(step=step, version=version, groups=names, reason=reason)
        case ["R", int() as step]:
            return Rewound(step)
        case _:
            raise ValueError(f"not a fact: {value!r:.60}")


# --- encoding ------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """The payload of a record. Raises what `trajectory_to_json` raises."""
    match record:
        case Admitted():
            return _payload(b"A", admitted_to_json(record))
        case Trajectory():
            return _encode_attempt(record, b"T")
        case Judged():
            said = verdict_to_json(record.verdict)
            return _payload(b"V", {"trajectory": record.trajectory, "verdict": said})
        case Consumed():
            return _payload(b"C", fact_to_json(record))


def admitted_to_json(record: Admitted) -> dict[str, Json]:
    return {
        "group": record.group,
        "size": record.size,
        "task": _task_json(record.task),
        "position": record.position,
        "version": record.version,
    }


def encode_member(trajectory: Trajectory) -> bytes:
    """The payload of an attempt that is nothing without the commit of its wave."""
    return _encode_attempt(trajectory, b"t")


def encode_wave(wave: WaveFact) -> bytes:
    return _payload(b"W", fact_to_json(wave))


def encode_rewound(mark: Rewound) -> bytes:
    return _payload(b"R", fact_to_json(mark))


def header_text(header: Json) -> str:
    """How a header is spelt."""
    return _dump(header).decode()


def _dump(value: Json) -> bytes:
    """JSON of values that `jsonable` let through, fast; in ASCII where half a surrogate pair, which
    no UTF-8 can hold, is in it."""
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class _TaskMemo:
    """The JSON of the tasks seen last; the attempts of a group share one."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Task, Json]] = {}

    def __call__(self, task: Task) -> Json:
        found = self._seen.get(id(task))
        if found is not None and found[0] is task:
            return found[1]
        told = task_to_json(task)
        if len(self._seen) >= _TASKS:
            self._seen.clear()
        self._seen[id(task)] = (task, told)
        return told


_task_json = _TaskMemo()


def _encode_attempt(trajectory: Trajectory, kind: bytes) -> bytes:
    arrays = ArrayWriter()
    header = trajectory_to_json(trajectory, arrays, _task_json(trajectory.task))
    header["arrays"] = arrays.lengths()
    return _payload(kind, header, arrays.parts())


def _payload(kind: bytes, header: Json, arrays: Sequence[bytes] = ()) -> bytes:
    text = _dump(header)
    return b"".join((_MAGIC, kind, _LENGTH.pack(len(text)), text, *arrays))


# --- decoding ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parsed:
    """A payload taken apart: its kind, its header and the bytes of its arrays."""

    kind: str
    header: Json
    arrays: bytes


def kind_of(payload: bytes) -> str:
    """The kind of a payload by its first bytes; "" for what is none."""
    if payload.startswith(_MAGIC):
        return payload[len(_MAGIC) : len(_MAGIC) + 1].decode("latin-1")
    if payload.startswith(b"{"):
        return "W" if payload.startswith(_OLD_COMMIT) else "t"
    return ""


def parse(payload: bytes) -> Parsed:
    """Take a payload apart. ValueError for what is none."""
    kind = kind_of(payload)
    if not kind:
        raise ValueError("it does not begin as a record does")
    if not payload.startswith(_MAGIC):
        return Parsed(kind, parse_json(payload), b"")
    if len(payload) < _START:
        raise ValueError("it is shorter than any record")
    (length,) = _LENGTH.unpack_from(payload, _START - _LENGTH.size)
    if len(payload) < _START + length:
        raise ValueError("it is shorter than its header")
    header = parse_json(payload[_START : _START + length])
    return Parsed(kind, header, payload[_START + length :])


def trajectory_of(parsed: Parsed) -> Trajectory:
    """The attempt in a record of kind T or t. Raises StorageError, or ValueError."""
    if not isinstance(parsed.header, dict) or "arrays" not in parsed.header:
        return trajectory_from_json(parsed.header)
    header = dict(parsed.header)
    return trajectory_from_json(header, ArrayReader.of(lengths_of(header), parsed.arrays))


def lengths_of(header: dict[str, Json]) -> list[int]:
    """Take the lengths of the arrays out of an attempt's header."""
    match header.pop("arrays"):
        case list() as lengths if all(type(length) is int for length in lengths):
            return lengths
        case other:
            raise ValueError(f"arrays are not lengths: {other!r:.40}")


def verdict_of(parsed: Parsed) -> Judged:
    """The verdict in a record of kind V. Raises StorageError, or ValueError."""
    match parsed.header:
        case {"trajectory": str() as trajectory, "verdict": said}:
            return Judged(trajectory, verdict_from_json(said))
        case _:
            raise ValueError("not a stored verdict")


def admitted_of(parsed: Parsed) -> Admitted:
    """The group in a record of kind A. Raises StorageError, or ValueError."""
    match parsed.header:
        case {
            "group": str() as group,
            "size": int() as size,
            "task": task,
            "position": int() as position,
            "version": int() as version,
        }:
            found = task_from_json(task)
            return Admitted(group=group, size=size, task=found, position=position, version=version)
        case _:
            raise ValueError("not a stored group")


def facts_of_unit(records: Sequence[Parsed]) -> list[Fact]:
    """The facts of records that were written as one: a single one, or a wave with its commit.

    ValueError for a record that does not say what its kind must.
    """
    facts = [_fact(record) for record in records[:-1]]
    last = records[-1]
    match last.header:
        case {"commit": str() as key, "count": int() as count} if count == len(facts):
            attempts = [fact for fact in facts if isinstance(fact, AttemptFact)]
            ids = tuple(attempt_id(fact.group, fact.attempt) for fact in attempts)
            return [*facts, WaveFact(key, ids)]
        case _:
            return [*facts, _fact(last)]


def _fact(parsed: Parsed) -> Fact:
    match parsed.kind, parsed.header:
        case "A", {"group": str() as group}:
            return AdmittedFact(group)
        case "T" | "t", {"group": str() as group, "attempt": int() as attempt, "verdict": said}:
            inside = _judged(attempt_id(group, attempt), said, inside=True) if said else None
            return AttemptFact(group, attempt, inside)
        case "V", {"trajectory": str() as trajectory, "verdict": said}:
            return _judged(trajectory, said)
        case "W" | "C" | "R" as kind, [str() as told, *_] if told == kind:
            return fact_from_json(parsed.header)
        case _:
            raise ValueError(f"a record of kind {parsed.kind!r} does not say what it must")


def _judged(trajectory: str, verdict: Json, *, inside: bool = False) -> JudgedFact:
    match verdict:
        case {"score": score, "verifier": {"id": str() as name, "version": str() as version}}:
            return JudgedFact(trajectory, VerifierRef(name, version), score is not None, inside)
        case _:
            raise ValueError("not a stored verdict")
