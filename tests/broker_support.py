"""What the broker's tests share: a clock that is moved by hand, and one broker on each database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from headrace.pipeline.broker import Broker, Done, Lease, Limits, Retry, Work, open_broker

START = 1_000_000.0
DATABASES = ("sqlite", "postgres")
_NUMBERS = itertools.count()

OpenBroker = Callable[..., Broker]


class Hand:
    """A clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time


def work(key: str, **changes: Any) -> Work:
    fields: dict[str, Any] = {"kind": "play", "domain": "math", "payload": f"task:{key}"}
    return Work(key=key, **{**fields, **changes})


def done(lease: Lease, cost: float | None = None, *then: Work) -> Done:
    return Done(lease, f"result of {lease.key}", lease.cost if cost is None else cost, then)


def keys(leases: Sequence[Lease]) -> list[str]:
    return [lease.key for lease in leases]


def fresh_schema(postgres_url: str) -> str:
    """The URL of an empty schema on the server."""
    name = f"test_{next(_NUMBERS)}"
    url = sa.make_url(postgres_url)
    with psycopg.connect(
        host=str(url.query["host"]), user=url.username, dbname=url.database, autocommit=True
    ) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{postgres_url}&options=-csearch_path%3D{name}"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database: every test that asks for it runs on SQLite and on Postgres."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'queue.sqlite'}"
    return fresh_schema(request.getfixturevalue("postgres_url"))


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def opened(url: str, hand: Hand) -> Generator[OpenBroker]:
    """Open a broker on the test's database; it is closed when the test ends."""
    brokers: list[Broker] = []

    def open_one(limits: Limits | None = None, retry: Retry | None = None) -> Broker:
        broker = open_broker(
            url, clock=hand, limits=limits or Limits(), retry=retry or Retry(jitter=0.0)
        )
        brokers.append(broker)
        return broker

    yield open_one
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(opened: OpenBroker) -> Broker:
    return opened()


class Worker:
    """Claims and commits under one name, with the least to say."""

    def __init__(self, broker: Broker, name: str = "worker-1") -> None:
        self.broker, self.name = broker, name

    def claim(
        self, limit: int = 1, *, kinds: Sequence[str] = ("play",), **more: Any
    ) -> list[Lease]:
        more = {"lease_s": 60.0, **more}
        return self.broker.claim(kinds, worker=self.name, limit=limit, **more)


@pytest.fixture
def worker(broker: Broker) -> Worker:
    return Worker(broker)
