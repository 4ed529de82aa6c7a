"""What a trajectory log keeps in memory: places, not payloads.

A million attempts in groups of eight, each with a verdict, take some 200 MB (measured by
`benchmarks/pipeline_store.py`): columns of numbers, one string a group, one integer an attempt.
Facts come in the order of the log, whether they were just written, read from a segment or from
the index of a sealed one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.store.ledger import Consumed, Ledger, Rewound
from headrace.store.records import (
    AdmittedFact,
    AttemptFact,
    Fact,
    JudgedFact,
    WaveFact,
    attempt_id,
    split_id,
)
from headrace.types import VerifierRef

__all__ = ["Index", "Place", "Places"]

_NONE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is: at `offset` in a segment or, once that is sealed, the `ordinal`-th of
    its kind in it."""

    segment: int
    offset: int
    length: int
    ordinal: int


class Places:
    """The places of all records of one kind, as columns; a row is never moved."""

    def __init__(self) -> None:
        self._segments = array("i")
        self._offsets = array("q")
        self._lengths = array("q")
        self._starts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: int, offset: int, length: int) -> int:
        row = len(self._segments)
        self._starts.setdefault(segment, row)
        self._segments.append(segment)
        self._offsets.append(offset)
        self._lengths.append(length)
        return row

    def __getitem__(self, row: int) -> Place:
        segment = self._segments[row]
        return Place(segment, self._offsets[row], self._lengths[row], row - self._starts[segment])

    def rows_of(self, segment: int) -> range:
        """The rows whose records are in a segment."""
        start = self._starts.get(segment, len(self))
        stops = [first for first in self._starts.values() if first > start]
        return range(start, min(stops, default=len(self)))


class Index:
    """Everything that can be asked without reading a payload.

    Not thread-safe by itself; its owner holds a lock.
    """

    def __init__(self) -> None:
        self.attempts = Places()
        self.verdicts = Places()
        self.admissions = Places()
        self.ledger = Ledger()
        self.waves: dict[str, array[int]] = {}
        self._groups: dict[str, int] = {}
        self._names: list[str] = []
        self._rows: list[dict[int, int]] = []
        self._admitted = array("q")
        self._group_of = array("i")
        self._attempt_of: list[int] = []
        self._wave_of = array("i")
        self._wave_names: list[str] = []
        self._wave_segments = array("i")
        self._refs: dict[VerifierRef, int] = {}
        self._ref_names: list[VerifierRef] = []
        self._ref_of = array("i")
        self._scored = array("b")
        self._inside = array("b")
        self._judged_row = array("q")
        self._first_verdict = array("q")
        self._next_verdict = array("q")

    # --- asking ----------------------------------------------------------------------------

    def row(self, group: str, attempt: int) -> int | None:
        """The row of an attempt, None if there is none."""
        number = self._groups.get(group)
        return None if number is None else self._rows[number].get(attempt)

    def row_of(self, trajectory: str) -> int | None:
        found = split_id(trajectory)
        return None if found is None else self.row(*found)

    def id_of(self, row: int) -> str:
        return attempt_id(self._names[self._group_of[row]], self._attempt_of[row])

    def group_of(self, row: int) -> str:
        return self._names[self._group_of[row]]

    def wave_of(self, row: int) -> str | None:
        """The wave that an attempt was first committed with."""
        number = self._wave_of[row]
        return None if number == _NONE else self._wave_names[number]

    def groups(self) -> list[str]:
        """Every group that was admitted or attempted, oldest first."""
        return list(self._names)

    def rows_of_group(self, group: str) -> list[int]:
        """The attempts of a group, by number."""
        number = self._groups.get(group)
        return [] if number is None else [row for _, row in sorted(self._rows[number].items())]

    def admission(self, group: str) -> int | None:
        """The row of a group's admission."""
        number = self._groups.get(group)
        row = _NONE if number is None else self._admitted[number]
        return None if row == _NONE else row

    def verdicts_of(self, row: int) -> Iterator[int]:
        """The rows of the verdicts on an attempt, oldest first."""
        verdict = self._first_verdict[row]
        while verdict != _NONE:
            yield verdict
            verdict = self._next_verdict[verdict]

    def verdict(self, row: int, verifier: VerifierRef | None = None) -> int | None:
        """The verdict that counts: the first with a score, or else the first; of one verifier
        (and version), or of whichever judged first."""
        found = [v for v in self.verdicts_of(row) if verifier in (None, self.ref_of(v))]
        scored = [verdict for verdict in found if self._scored[verdict]]
        return next(iter(scored or found), None)

    def is_scored(self, verdict: int) -> bool:
        return bool(self._scored[verdict])

    def is_inside(self, verdict: int) -> bool:
        """Whether a verdict is part of its attempt's own record."""
        return bool(self._inside[verdict])

    def judged_row(self, verdict: int) -> int:
        """The attempt that a verdict is about."""
        return self._judged_row[verdict]

    def ref_of(self, verdict: int) -> VerifierRef:
        return self._ref_names[self._ref_of[verdict]]

    def knows_verdict(self, fact: JudgedFact) -> bool:
        """Whether such a verdict would say nothing new: the verifier's version has given a
        score, or neither this one nor the one that is there has any."""
        row = self.row_of(fact.trajectory)
        known = None if row is None else self.verdict(row, fact.verifier)
        return known is not None and (self.is_scored(known) or not fact.scored)

    def segments_of_group(self, group: str) -> set[int]:
        """Where the admission, the attempts and the verdicts of a group are."""
        rows = self.rows_of_group(group)
        verdicts = [verdict for row in rows for verdict in self.verdicts_of(row)]
        admission = self.admission(group)
        return {
            *(self.attempts[row].segment for row in rows),
            *(self.verdicts[verdict].segment for verdict in verdicts),
            *(() if admission is None else (self.admissions[admission].segment,)),
        }

    def waves_by_segment(self) -> Iterator[tuple[int, set[str]]]:
        """Of each wave, where its commit is and the groups in it."""
        for segment, rows in zip(self._wave_segments, self.waves.values(), strict=True):
            yield segment, {self.group_of(row) for row in rows}

    # --- learning --------------------------------------------------------------------------

    def apply(self, fact: Fact, segment: int, offset: int, length: int) -> None:
        """Take in the fact of a record at a place. What is known already changes nothing.

        ValueError for a fact about an attempt that is not there.
        """
        match fact:
            case AttemptFact():
                self._add_attempt(fact, segment, offset, length)
            case JudgedFact():
                row = self.row_of(fact.trajectory)
                if row is None:
                    raise ValueError(f"a verdict on {fact.trajectory}, which is not there")
                if not self.knows_verdict(fact):
                    self._add_verdict(row, fact, segment, offset, length)
            case AdmittedFact(group):
                number = self._group(group)
                if self._admitted[number] == _NONE:
                    self._admitted[number] = self.admissions.add(segment, offset, length)
            case WaveFact():
                self._add_wave(fact, segment)
            case Consumed():
                self.ledger.add(fact)
            case Rewound():
                self.ledger.rewind(fact)

    def _group(self, name: str) -> int:
        number = self._groups.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
            self._rows.append({})
            self._admitted.append(_NONE)
        return number

    def _add_attempt(self, fact: AttemptFact, segment: int, offset: int, length: int) -> None:
        number = self._group(fact.group)
        if fact.attempt in self._rows[number]:
            return
        row = self.attempts.add(segment, offset, length)
        self._rows[number][fact.attempt] = row
        self._group_of.append(number)
        self._attempt_of.append(fact.attempt)
        self._wave_of.append(_NONE)
        self._first_verdict.append(_NONE)
        if fact.verdict is not None:
            self._add_verdict(row, fact.verdict, segment, offset, length)

    def _add_verdict(
        self, row: int, fact: JudgedFact, segment: int, offset: int, length: int
    ) -> None:
        earlier = list(self.verdicts_of(row))
        verdict = self.verdicts.add(segment, offset, length)
        ref = self._refs.setdefault(fact.verifier, len(self._refs))
        if ref == len(self._ref_names):
            self._ref_names.append(fact.verifier)
        self._ref_of.append(ref)
        self._scored.append(fact.scored)
        self._inside.append(fact.inside)
        self._judged_row.append(row)
        self._next_verdict.append(_NONE)
        if earlier:
            self._next_verdict[earlier[-1]] = verdict
        else:
            self._first_verdict[row] = verdict

    def _add_wave(self, fact: WaveFact, segment: int) -> None:
        rows = [self.row_of(trajectory) for trajectory in fact.trajectories]
        if fact.key in self.waves or None in rows:
            raise ValueError(f"wave {fact.key} is there twice, or lacks attempts")
        known = [row for row in rows if row is not None]
        self.waves[fact.key] = array("q", known)
        for row in known:
            if self._wave_of[row] == _NONE:
                self._wave_of[row] = len(self._wave_names)
        self._wave_names.append(fact.key)
        self._wave_segments.append(segment)
