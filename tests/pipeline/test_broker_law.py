"""Random histories of calls against a model in memory: nothing is lost, nothing happens twice."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_support import DATABASES, Hand, done, fresh_schema, work
from headrace.pipeline.broker import Broker, Lease, Limits, Retry, Work, open_broker

RETRY = Retry(attempts=3, poison_attempts=2, deaths=2, base_s=4.0, jitter=0.0)
LEASE_S = 10.0
STATES = ("ready", "waiting", "leased", "done", "dead", "cancelled")


class Model:
    """What every item's state must be, and how often it was done."""

    def __init__(self, broker: Broker, hand: Hand, seed: int) -> None:
        self.broker, self.hand, self.rng = broker, hand, Random(seed)
        self.state: dict[str, str] = {}
        self.works: dict[str, Work] = {}
        self.done = Counter[str]()
        self.valid: dict[str, Lease] = {}
        self.old: list[Lease] = []
        self.made = 0

    def step(self) -> None:
        moves: list[Callable[[], None]] = [
            self.enqueue,
            self.claim,
            self.claim,
            self.commit,
            self.commit,
            self.commit_late,
            self.fail,
            self.release,
            self.wait,
            self.beat,
            self.cancel,
            self.reset,
            self.share,
        ]
        self.rng.choice(moves)()

    def enqueue(self) -> None:
        fresh = [self._new() for _ in range(self.rng.randrange(1, 5))]
        known = self.rng.sample(sorted(self.works), min(len(self.works), 2))
        assert self.broker.enqueue([*fresh, *(self.works[key] for key in known)]) == len(fresh)
        self._admit(fresh)

    def _new(self) -> Work:
        self.made += 1
        rng = self.rng
        return work(
            f"k{self.made}",
            domain=rng.choice("abc"),
            cost=float(rng.randrange(1, 20)),
            priority=rng.randrange(3),
            size=rng.randrange(9),
            not_before=self.hand.time + rng.choice((0, 0, 0, 15)),
        )

    def _admit(self, works: list[Work]) -> None:
        for new in works:
            self.works[new.key] = new
            waits = new.not_before > self.hand.time
            self.state[new.key] = "waiting" if waits else "ready"

    def claim(self) -> None:
        leases = self.broker.claim(
            ["play"], worker="w", limit=self.rng.randrange(1, 6), lease_s=LEASE_S
        )
        for lease in leases:
            assert lease.key not in self.valid
            assert self.state[lease.key] in ("ready", "waiting")
            self.state[lease.key] = "leased"
            self.valid[lease.key] = lease

    def commit(self) -> None:
        if not self.valid:
            return
        keys = self.rng.sample(sorted(self.valid), min(len(self.valid), 2))
        follow = self._new()
        results = [done(self.valid[key], float(self.rng.randrange(30)), follow) for key in keys]
        assert self.broker.commit(results) == []
        self._admit([follow])
        for key in keys:
            self._lose(key, "done")
            self.done[key] += 1

    def commit_late(self) -> None:
        if self.old:
            late = done(self.rng.choice(self.old), 1.0, self._new())
            assert self.broker.commit([late]) == [late]

    def fail(self) -> None:
        if not self.valid:
            return
        key = self.rng.choice(sorted(self.valid))
        lease = self.valid[key]
        again = self.broker.fail(lease, kind_of_failure="infrastructure", evidence="x")
        assert again == (lease.attempt < RETRY.attempts)
        self._lose(key, "waiting" if again else "dead")

    def release(self) -> None:
        if self.valid:
            key = self.rng.choice(sorted(self.valid))
            assert self.broker.release(self.valid[key])
            self._lose(key, "ready")

    def wait(self) -> None:
        self.hand.time += self.rng.choice((1.0, 6.0, 20.0))
        dead = {letter.key for letter in self.broker.dead()}
        for lease in self.broker.expire():
            now_dead = lease.key in {letter.key for letter in self.broker.dead()} - dead
            self._lose(lease.key, "dead" if now_dead else "ready")

    def beat(self) -> None:
        leases = list(self.valid.values())
        old = self.old[-3:]
        assert self.broker.heartbeat([*leases, *old], LEASE_S) == old

    def cancel(self) -> None:
        if self.works and self.rng.random() < 0.4:
            key = self.rng.choice(sorted(self.works))
            open_ = self.state[key] in STATES[:3]
            assert self.broker.cancel(keys=[key]) == int(open_)
            if open_:
                self._lose(key, "cancelled")

    def reset(self) -> None:
        if self.rng.random() < 0.3:
            assert self.broker.reset("w") == len(self.valid)
            for key in list(self.valid):
                self._lose(key, "ready")

    def share(self) -> None:
        limit = self.rng.choice((None, None, 1, 3))
        self.broker.set_share(self.rng.choice("abc"), self.rng.choice((0.5, 1.0, 2.0)), limit)

    def _lose(self, key: str, state: str) -> None:
        self.state[key] = state
        if lease := self.valid.pop(key, None):
            self.old.append(lease)

    def check(self, rows: list[tuple[str, int]]) -> None:
        """Every item is in the database once, and in the state it must be in."""
        assert len(rows) == len({key for key, _ in rows}) == len(self.state)
        for key, number in rows:
            state, known = STATES[number], self.state[key]
            assert state == known or (known == "waiting" and state == "ready")
        assert max(self.done.values(), default=0) <= 1

    def check_shares(self) -> None:
        """What the shares count is what the items are, once a claim has taken everything in."""
        self.claim()
        stats = self.broker.stats()
        for kind in stats.kinds:
            mine = [share for share in stats.shares if share.kind == kind.kind]
            assert sum(share.ready for share in mine) == kind.ready
            assert sum(share.running for share in mine) == kind.leased
            assert min((share.ready for share in mine), default=0) >= 0
            assert self.broker.room(kind.kind) == Limits().queued_bytes - kind.size


def run_history(url: str, read: Callable[[], list[tuple[str, int]]], seed: int, steps: int) -> None:
    hand = Hand()
    with open_broker(url, clock=hand, limits=Limits(aging_s=30.0), retry=RETRY) as broker:
        model = Model(broker, hand, seed)
        for _ in range(steps):
            model.step()
        model.check(read())
        model.check_shares()
        hand.time += 1000
        broker.reset("w")
        for domain in "abc":
            broker.set_share(domain)
        left = {key for key, state in model.state.items() if state in STATES[:3]}
        while leases := broker.claim(["play"], worker="w", limit=7, lease_s=LEASE_S):
            assert broker.commit([done(lease) for lease in leases]) == []
            left -= {lease.key for lease in leases}
        assert left == set()


QUERY = "SELECT key, state FROM broker_items"


@pytest.mark.parametrize("database", DATABASES)
def test_random_histories_conserve_every_item(
    database: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**32))
    def history(seed: int) -> None:
        if database == "sqlite":
            file = tmp_path_factory.mktemp("law") / "queue.sqlite"
            run_history(f"sqlite:///{file}", lambda: _read_sqlite(file), seed, 40)
        else:
            url = fresh_schema(request.getfixturevalue("postgres_url"))
            run_history(url, lambda: _read_postgres(url), seed, 40)

    history()


def _read_sqlite(file: Path) -> list[tuple[str, int]]:
    connection = sqlite3.connect(file)
    try:
        return connection.execute(QUERY).fetchall()
    finally:
        connection.close()


def _read_postgres(url: str) -> list[tuple[str, int]]:
    parsed = sa.make_url(url)
    with psycopg.connect(
        host=str(parsed.query["host"]),
        user=parsed.username,
        dbname=parsed.database,
        options=str(parsed.query["options"]),
    ) as connection:
        return connection.execute(QUERY.encode()).fetchall()


def test_broken_bookkeeping_would_be_seen(tmp_path: Path) -> None:
    """The model's own check can fail: an item that vanishes, or changes its state, is noticed."""
    hand, file = Hand(), tmp_path / "queue.sqlite"
    with open_broker(f"sqlite:///{file}", clock=hand, retry=RETRY) as broker:
        model = Model(broker, hand, 1)
        for _ in range(5):
            model.enqueue()
        rows = _read_sqlite(file)
        model.check(rows)
        for wrong in (rows[1:], [*rows[1:], (rows[0][0], 3)]):
            with pytest.raises(AssertionError):
                model.check(wrong)
