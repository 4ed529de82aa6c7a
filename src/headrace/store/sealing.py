"""Turning segments into tables: to seal them, or to ask something of what is not sealed yet.

Loads pyarrow: import it where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter

from headrace.store import tables
from headrace.store.index import Place
from headrace.store.log import Found, Log
from headrace.store.records import (
    Admitted,
    AdmittedFact,
    AttemptFact,
    Fact,
    Judged,
    JudgedFact,
    admitted_of,
    encode,
    parse,
    trajectory_of,
    verdict_of,
)
from headrace.store.sealed import Tables, put_segment
from headrace.store.segments import Descriptor
from headrace.store.tables import AdmissionRow, AttemptRow, VerdictRow

__all__ = ["seal_segment", "tables_of"]


def seal_segment(log: Log, number: int) -> None:
    """Put a segment that nobody appends to into sealed files, under a new manifest.

    A kill at any instant leaves the old or the new manifest; with the old one the segment is
    still there, and what was stored is swept later.
    """
    sealed = put_segment(log.vault, number, 0, tables_of(log, {number: log.opened(number)}))
    with log.lock:
        manifest = replace(
            log.manifest, url=log.url, segments={**log.manifest.segments, number: sealed}
        )
    manifest.write(log.directory)
    with log.lock:
        log.manifest = manifest
        del log.files[number]


def tables_of(log: Log, files: Mapping[int, Descriptor]) -> Tables:
    """The tables of segments that are not sealed, by number. Raises StorageError."""
    builder = _Builder(log)
    for number, file in sorted(files.items(), key=itemgetter(0)):
        for found in log.records(number, file):
            builder.add(number, found)
    return Tables(
        facts=builder.facts,
        attempts=tables.attempts(builder.attempts),
        verdicts=tables.verdicts(builder.verdicts),
        admissions=tables.admissions(builder.admissions),
    )


def _seq(place: Place) -> int:
    return (place.segment << 32) + place.ordinal


class _Builder:
    """Collects rows in the order of the index, so that a row's number is its ordinal; records
    that the index passed over (a wave written again by the first format) are left out."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.facts: list[Fact] = []
        self.attempts: list[AttemptRow] = []
        self.verdicts: list[VerdictRow] = []
        self.admissions: list[AdmissionRow] = []

    def add(self, number: int, found: Found) -> None:
        match found.fact:
            case AttemptFact():
                self._attempt(number, found, found.fact)
            case JudgedFact(trajectory):
                self._verdict(number, found, trajectory)
            case AdmittedFact(group):
                self._admission(number, found, group)
            case fact:
                self.facts.append(fact)

    def _attempt(self, number: int, found: Found, fact: AttemptFact) -> None:
        log = self._log
        with log.lock:
            row = log.index.row(fact.group, fact.attempt)
            if row is None or not _is_at(log.index.attempts[row], number, found):
                return
            place, wave = log.index.attempts[row], log.index.wave_of(row)
            consumed = log.index.ledger.of(fact.group)
            verdicts = list(log.index.verdicts_of(row))
            first = log.index.verdicts[verdicts[0]] if verdicts else None
            counting = log.index.verdict(row)
            own = counting is not None and log.index.is_inside(counting)
            said_at = None if counting is None or own else log.index.verdicts[counting]
        trajectory, parsed = trajectory_of(found.parsed), found.parsed
        if "arrays" not in parsed.header:
            parsed = parse(encode(trajectory))
        later = None if said_at is None else log.verdict(said_at, inside=False)
        self.facts.append(fact)
        self.attempts.append(
            AttemptRow(
                seq=_seq(place),
                trajectory=trajectory,
                parsed=parsed,
                wave=wave,
                step=tables.step_of(fact.group) if consumed is None else consumed.step,
                verdict=trajectory.verdict if own else later,
            )
        )
        if trajectory.verdict is not None and first is not None:
            judged = Judged(trajectory.id, trajectory.verdict)
            self.verdicts.append(VerdictRow(seq=_seq(first), judged=judged, inside=True))

    def _verdict(self, number: int, found: Found, trajectory: str) -> None:
        log = self._log
        with log.lock:
            row = log.index.row_of(trajectory)
            verdicts = [] if row is None else list(log.index.verdicts_of(row))
            places = [log.index.verdicts[verdict] for verdict in verdicts]
        place = next((place for place in places if _is_at(place, number, found)), None)
        if place is not None:
            judged = verdict_of(found.parsed)
            self.facts.append(found.fact)
            self.verdicts.append(VerdictRow(seq=_seq(place), judged=judged, inside=False))

    def _admission(self, number: int, found: Found, group: str) -> None:
        log = self._log
        with log.lock:
            row = log.index.admission(group)
            place = None if row is None else log.index.admissions[row]
        if place is not None and _is_at(place, number, found):
            admitted: Admitted = admitted_of(found.parsed)
            self.facts.append(found.fact)
            self.admissions.append(AdmissionRow(seq=_seq(place), admitted=admitted))


def _is_at(place: Place, number: int, found: Found) -> bool:
    return place.segment == number and place.offset == found.located.offset
