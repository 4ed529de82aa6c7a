"""Records on their way to the disk: what each will count as, and who waits for it.

Known by the store alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.store.ledger import Consumed, Rewound
from headrace.store.log import Log
from headrace.store.records import AdmittedFact, AttemptFact, Fact, JudgedFact, WaveFact, names_of
from headrace.store.segments import OVERHEAD

__all__ = ["Appended", "Incoming", "Item", "Pending"]


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a record: it is durable, and `new` unless it had been there before."""

    new: bool


@dataclass(frozen=True, slots=True)
class Item:
    """A record about to be written; it counts once under each of its `names`."""

    fact: Fact
    names: list[Hashable]
    payload: bytes

    @classmethod
    def of(cls, fact: Fact, payload: bytes) -> Item:
        return cls(fact, names_of(fact), payload)


@dataclass(frozen=True, slots=True)
class Pending:
    """Records that are written as one, and the future of all of them."""

    items: Sequence[Item]
    future: Future[Appended]


class Incoming:
    """What was submitted and has not landed in the index, by name. Guarded by the log's lock.

    The `Owner` of a `SegmentWriter`.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pending: dict[Hashable, Pending] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._pending

    def twin(self, item: Item) -> Future[Appended] | None:
        """The answer to a record that is stored or on its way; None for a new one.

        ValueError for one that contradicts what is there.
        """
        fact = item.fact
        if self._is_stored(fact):
            future = _promise()
            future.set_result(Appended(new=False))
            return future
        twins = [self._pending[name] for name in item.names if name in self._pending]
        if not twins:
            return None
        if isinstance(fact, Consumed) and any(twin.items[0].fact != fact for twin in twins):
            raise ValueError(f"step {fact.step} consumes a group that is being consumed otherwise")
        return _as_old(twins[-1].future)

    def _is_stored(self, fact: Fact) -> bool:
        index = self._log.index
        match fact:
            case AttemptFact(group, attempt):
                return index.row(group, attempt) is not None
            case AdmittedFact(group):
                return index.admission(group) is not None
            case JudgedFact(trajectory):
                stored = index.row_of(trajectory) is not None
                if not stored and ("attempt", trajectory) not in self._pending:
                    raise ValueError(f"a verdict on {trajectory}, which is not stored")
                return stored and index.knows_verdict(fact)
            case Consumed():
                return index.ledger.is_known(fact)
            case WaveFact() | Rewound():
                return False

    def add(self, items: Sequence[Item]) -> Pending:
        """Note records that are about to be submitted."""
        pending = Pending(items, _promise())
        for item in items:
            self._pending.update(dict.fromkeys(item.names, pending))
        return pending

    # --- as the writer tells -----------------------------------------------------------------

    def landed(self, token: Pending, segment: int, offset: int) -> None:
        with self._log.lock:
            self._log.opened(segment)
            for item in token.items:
                self._log.index.apply(item.fact, segment, offset, len(item.payload))
                offset += OVERHEAD + len(item.payload)
            self.forget(token)

    def acknowledged(self, token: Pending) -> None:
        token.future.set_result(Appended(new=True))

    def failed(self, tokens: Sequence[Pending], error: BaseException) -> None:
        with self._log.lock:
            for token in tokens:
                self.forget(token)
        for token in tokens:
            if not token.future.done():
                token.future.set_exception(error)

    def forget(self, pending: Pending) -> None:
        for item in pending.items:
            for name in item.names:
                self._pending.pop(name, None)


def _promise() -> Future[Appended]:
    """A future that whoever waits for it cannot cancel: the record is written all the same."""
    future: Future[Appended] = Future()
    future.set_running_or_notify_cancel()
    return future


def _as_old(first: Future[Appended]) -> Future[Appended]:
    """The same record again: done when the first one is, and not new."""
    future = _promise()

    def settle(done: Future[Appended]) -> None:
        error = done.exception()
        if error is None:
            future.set_result(Appended(new=False))
        else:
            future.set_exception(error)

    first.add_done_callback(settle)
    return future
