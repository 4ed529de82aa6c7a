"""Compaction: what a store may forget, and how sealed files are replaced by smaller ones.

Only sealed segments are compacted. New files are stored beside the old ones, one manifest puts
them all in force at once, and the old ones are removed after that. Loads pyarrow: import it
where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.store import tables
from headrace.store.log import Log
from headrace.store.records import AdmittedFact, AttemptFact, Fact, JudgedFact, WaveFact, split_id
from headrace.store.sealed import Tables, facts_of, put_segment, table_of
from headrace.store.vault import Manifest, SealedSegment

__all__ = ["Freed", "Retention", "compact"]

BetweenFlushes = Callable[[Callable[[], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What may go. A group's step is that of its consumption, or else of its admission.

    `arrays_from`: token ids, masks and log-probabilities are kept from this step on; texts,
    verdicts and the ledger stay. `groups_from`: whole groups (admission, attempts, verdicts) are
    kept from this step on, and so is what shares a wave with one that is kept.

    Groups that were never consumed stay whole unless `unconsumed`; groups that the ledger names
    are never dropped whole unless `consumed`. The ledger itself stays always.
    """

    arrays_from: int | None = None
    groups_from: int | None = None
    unconsumed: bool = False
    consumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What a compaction dropped: whole groups with their attempts, the arrays of attempts that
    stay, and bytes of sealed files."""

    groups: int
    trajectories: int
    arrays: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """Groups to drop whole, and groups whose arrays go."""

    whole: frozenset[str]
    arrays: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Shrunk:
    tables: Tables
    trajectories: int
    arrays: int


def compact(log: Log, keep: Retention, between_flushes: BetweenFlushes) -> Freed:
    """Drop from the sealed segments what `keep` lets go. Raises StorageError."""
    before = log.manifest
    log.vault.sweep(before.names())
    plan = _plan(log, keep)
    segments = dict(before.segments)
    trajectories = arrays = 0
    for number, segment in before.segments.items():
        shrunk = _shrunk(log, segment, plan)
        if shrunk is not None:
            segments[number] = put_segment(log.vault, number, segment.generation + 1, shrunk.tables)
            trajectories, arrays = trajectories + shrunk.trajectories, arrays + shrunk.arrays
    after = replace(before, segments=segments)
    if segments != before.segments:
        between_flushes(lambda: _put_in_force(log, after))
        log.vault.sweep(after.names())
    return Freed(
        groups=len(plan.whole),
        trajectories=trajectories,
        arrays=arrays,
        bytes=before.size() - after.size(),
    )


def _put_in_force(log: Log, manifest: Manifest) -> None:
    manifest.write(log.directory)
    log.load()


# --- what goes -----------------------------------------------------------------------------


def _plan(log: Log, keep: Retention) -> _Plan:
    whole: set[str] = set()
    arrays: set[str] = set()
    with log.lock:
        index = log.index
        for group in index.groups():
            consumed = index.ledger.of(group)
            step = tables.step_of(group) if consumed is None else consumed.step
            if step is None:
                continue
            told = keep.unconsumed if consumed is None else keep.consumed
            sealed = index.segments_of_group(group) <= log.manifest.segments.keys()
            if keep.groups_from is not None and step < keep.groups_from and told and sealed:
                whole.add(group)
            old = keep.arrays_from is not None and step < keep.arrays_from
            if old and (consumed is not None or keep.unconsumed):
                arrays.add(group)
        waves = list(index.waves_by_segment())
        for segment, groups in waves:
            if segment not in log.manifest.segments:
                whole -= groups
    while torn := [groups for _, groups in waves if groups & whole and not groups <= whole]:
        whole.difference_update(*torn)
    return _Plan(frozenset(whole), frozenset(arrays - whole))


# --- what stays ----------------------------------------------------------------------------


def _shrunk(log: Log, segment: SealedSegment, plan: _Plan) -> _Shrunk | None:
    """A segment's tables without what goes; None if nothing of it does."""
    facts = facts_of(log.vault, segment)
    attempts = [fact for fact in facts if isinstance(fact, AttemptFact)]
    dropped = sum(fact.group in plan.whole for fact in attempts)
    thinned = [fact.group in plan.arrays for fact in attempts]
    kept = [fact for fact in (_kept(fact, plan) for fact in facts) if fact is not None]
    if kept == facts and not any(thinned):
        return None
    table = table_of(log.vault, segment.files["attempts"])
    lengths = _lengths(table["ids"])
    bare = [thin and bool(length) for thin, length in zip(thinned, lengths, strict=True)]
    if kept == facts and not any(bare):
        return None
    whole = [fact.group not in plan.whole for fact in attempts]
    return _Shrunk(
        Tables(
            facts=kept,
            attempts=_renumbered(_without_arrays(table, bare).filter(pa.array(whole, pa.bool_()))),
            verdicts=_of_kept(table_of(log.vault, segment.files["verdicts"]), facts, plan),
            admissions=_admissions(table_of(log.vault, segment.files["tasks"]), facts, plan),
        ),
        dropped,
        sum(bare),
    )


def _lengths(column: pa.ChunkedArray) -> list[int | None]:
    """How many items each list has; None for a null."""
    lengths: list[int | None] = pc.call_function("list_value_length", [column]).to_pylist()
    return lengths


def _kept(fact: Fact, plan: _Plan) -> Fact | None:
    """A fact, without what was dropped; None if nothing of it is left."""
    match fact:
        case AttemptFact(group=group) | AdmittedFact(group=group):
            return None if group in plan.whole else fact
        case JudgedFact(trajectory):
            return None if _group(trajectory) in plan.whole else fact
        case WaveFact(key, trajectories):
            left = tuple(t for t in trajectories if _group(t) not in plan.whole)
            return WaveFact(key, left) if left or not trajectories else None
        case _:
            return fact


def _group(trajectory: str) -> str:
    found = split_id(trajectory)
    return trajectory if found is None else found[0]


def _of_kept(table: pa.Table, facts: list[Fact], plan: _Plan) -> pa.Table:
    """The verdicts on attempts that stay. Rows are in the order of the facts."""
    judged = [
        fact if isinstance(fact, JudgedFact) else fact.verdict
        for fact in facts
        if isinstance(fact, JudgedFact | AttemptFact)
    ]
    stay = [_group(fact.trajectory) not in plan.whole for fact in judged if fact is not None]
    return _renumbered(table.filter(pa.array(stay, pa.bool_())))


def _admissions(table: pa.Table, facts: list[Fact], plan: _Plan) -> pa.Table:
    stay = [fact.group not in plan.whole for fact in facts if isinstance(fact, AdmittedFact)]
    return _renumbered(table.filter(pa.array(stay, pa.bool_())))


def _renumbered(table: pa.Table) -> pa.Table:
    """The table with `seq` counting its own rows again: their numbers are how they are found."""
    if not len(table):
        return table
    segment = table["seq"][0].as_py() >> 32
    seq = pa.array([(segment << 32) + row for row in range(len(table))], pa.int64())
    return table.set_column(table.schema.get_field_index("seq"), table.schema.field("seq"), seq)


def _without_arrays(table: pa.Table, bare: list[bool]) -> pa.Table:
    """The table with null arrays, and records that say so, where `bare`."""
    if not any(bare):
        return table
    for name in tables.ARRAYS:
        field = table.schema.field(name)
        keep = [None if gone else row for row, gone in enumerate(bare)]
        column = table[name].combine_chunks().take(pa.array(keep, pa.int64()))
        table = table.set_column(table.schema.get_field_index(name), field, column)
    records = [
        tables.without_arrays(record) if gone else record
        for record, gone in zip(table["record"].to_pylist(), bare, strict=True)
    ]
    column = table.schema.get_field_index("record")
    return table.set_column(column, table.schema.field("record"), pa.array(records, pa.string()))
