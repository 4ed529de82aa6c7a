"""The broker: claim-commit cycles a second on SQLite and Postgres, and how fair its claims are.

A part of `benchmarks/pipeline.py`. The items name 300 domains, their actual cost differs from
the estimate, and every result is committed for itself in batches of 10, as workers do. Postgres
is a private server with the settings it has by default (fsync and all).
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rows import Row

from headrace.pipeline.broker import Broker, Done, Limits, Work, open_broker
from headrace.pipeline.clock import SystemClock
from headrace.types import Json

__all__ = ["rows"]

BATCH = 10
CONSUMERS = 4
DEADLINE_S = 300.0
DOMAINS = 300
DEEP = 100_000
SHALLOW = 2_000
WINDOW = 1_000
LEASE_S = 600.0

Matrix = npt.NDArray[np.float64]


def rows(quick: bool, told: dict[str, Json]) -> list[Row]:
    """`told` gets what the rows do not say, under "broker"."""
    count, rounds = (4_000, 1) if quick else (20_000, 3)
    with _sqlite() as url:
        sqlite = [_alone(url, f"round {n}", count, DOMAINS) for n in range(rounds)]
        few = [_alone(url, f"few {n}", count, 10) for n in range(rounds)]
    with _postgres() as url:
        postgres = [_together(url, f"round {n}", count) for n in range(rounds)]
    unit = f"items/s, batch {BATCH}"
    return [
        Row(
            what="claim and commit, SQLite, one consumer",
            peer="-",
            unit=unit,
            ours=tuple(sqlite),
            least=2_500,
        ),
        Row(
            what=f"claim and commit, Postgres with fsync, {CONSUMERS} consumers",
            peer="-",
            unit=unit,
            ours=tuple(postgres),
            least=5_000,
        ),
        Row(
            what=f"{DOMAINS} domains, SQLite",
            peer="10 domains",
            unit=unit,
            ours=tuple(sqlite),
            theirs=tuple(few),
        ),
        *_deep(quick),
        *_fairness(quick, told),
    ]


# --- speed ---------------------------------------------------------------------------------


@contextmanager
def _sqlite() -> Generator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield f"sqlite:///{Path(directory) / 'queue.sqlite'}"


@contextmanager
def _postgres() -> Generator[str]:
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_support import private_postgres

    with private_postgres(fsync=True) as url:
        yield url


def _open(url: str) -> Broker:
    return open_broker(url, clock=SystemClock(), limits=Limits(queued_bytes=1 << 40))


def _fill(broker: Broker, name: str, count: int, domains: int) -> None:
    works = [
        Work(
            kind=name,
            key=f"{n:06d}:0.0/{n % 8}",
            domain=f"domain-{n % domains}",
            payload=f"trajectory:{n:06d}:0.0/{n % 8}",
            cost=1.0 + n % 7,
            size=1_000,
        )
        for n in range(count)
    ]
    for start in range(0, count, 1_000):
        broker.enqueue(works[start : start + 1_000])


def _consume(broker: Broker, name: str, most: int | None = None) -> int:
    """Claim and commit until nothing is left, or `most` items are done; how many were."""
    done = 0
    while most is None or done < most:
        leases = broker.claim([name], worker="consumer", limit=BATCH, lease_s=LEASE_S)
        if not leases:
            break
        results = [Done(lease, f"verdict:{lease.key}", lease.cost * 1.1) for lease in leases]
        if broker.commit(results):
            raise RuntimeError("a valid lease was fenced")
        done += len(leases)
    return done


def _alone(url: str, name: str, count: int, domains: int) -> float:
    """Items a second of one consumer."""
    with _open(url) as broker:
        _fill(broker, name, count, domains)
        began = time.perf_counter()
        done = _consume(broker, name)
        seconds = time.perf_counter() - began
    if done != count:
        raise RuntimeError(f"{done} of {count} items were done")
    return count / seconds


def _together(url: str, name: str, count: int) -> float:
    """Items a second of several processes, from their common start to the end of the last."""
    with _open(url) as broker:
        _fill(broker, name, count, DOMAINS)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(CONSUMERS)
    with context.Pool(CONSUMERS, _prepare, (barrier,)) as pool:
        asked = pool.starmap_async(_consume_together, [(url, name)] * CONSUMERS, chunksize=1)
        ends = asked.get(DEADLINE_S)
    if sum(done for done, _, _ in ends) != count:
        raise RuntimeError(f"{ends} do not make {count} items")
    return count / (max(end for _, _, end in ends) - min(start for _, start, _ in ends))


_BARRIERS: list[Barrier] = []


def _prepare(barrier: Barrier) -> None:
    _BARRIERS.append(barrier)


def _consume_together(url: str, name: str) -> tuple[int, float, float]:
    with _open(url) as broker:
        _BARRIERS[0].wait(DEADLINE_S)
        began = time.monotonic()
        done = _consume(broker, name)
        return done, began, time.monotonic()


def _deep(quick: bool) -> list[Row]:
    """The first items of a deep queue against those of a shallow one."""
    deep = DEEP // 10 if quick else DEEP
    made: list[Row] = []
    for label, opened in (("SQLite", _sqlite), ("Postgres", _postgres)):
        with opened() as url, _open(url) as broker:
            rates: list[float] = []
            for count in (SHALLOW, deep):
                name = f"{count} deep"
                _fill(broker, name, count, DOMAINS)
                began = time.perf_counter()
                done = _consume(broker, name, SHALLOW)
                rates.append(done / (time.perf_counter() - began))
        row = Row(
            what=f"{label}, one consumer, {deep:,} items ready",
            peer=f"{SHALLOW:,} ready",
            unit=f"items/s, batch {BATCH}",
            ours=(rates[1],),
            theirs=(rates[0],),
            bar=0.5,
        )
        made.append(row)
    return made


# --- fairness ------------------------------------------------------------------------------


def _fairness(quick: bool, told: dict[str, Json]) -> list[Row]:
    """Windows of 1,000 dispatches of 300 domains whose items cost 1 to 1,000.

    Counted to within one item of each domain at the window's edges (see `pipeline.fair` for
    why, and for the law), and plainly, for information.
    """
    costs = np.logspace(0, 3, DOMAINS)
    count = 4_000 if quick else 15_000
    order = _dispatched(costs, count)
    served = np.zeros((len(order) + 1, DOMAINS))
    served[np.arange(1, len(order) + 1), order] = costs[order]
    total = np.cumsum(served, axis=0)
    inside = total[WINDOW:] - total[:-WINDOW]
    edges = _to_within_an_item(inside, costs)
    plain = inside / (inside.sum(axis=1, keepdims=True) / DOMAINS)
    told["broker"] = {
        "fairness": {
            "dispatches": len(order),
            "windows": len(inside),
            "to within an item": float(edges.min()),
            "plainly, least": float(plain.min()),
            "plainly, domains and windows with 0.9": float((plain >= 0.9).mean()),
        }
    }
    what = f"least share of a domain in any {WINDOW:,} dispatches, {DOMAINS} domains"
    unit = "of its weighted share"
    return [
        Row(
            what=f"{what}, to within an item at the edges",
            peer="-",
            unit=unit,
            ours=(float(edges.min()),),
            least=0.9,
        ),
        Row(what=f"{what}, plainly", peer="-", unit=unit, ours=(float(plain.min()),)),
    ]


def _to_within_an_item(inside: Matrix, costs: Matrix) -> Matrix:
    """Service with an item more, over the share of what others got with an item less of each."""
    others = np.maximum(inside - costs, 0.0).sum(axis=1, keepdims=True) / DOMAINS
    return (inside + costs) / np.maximum(others, 1e-9)


def _dispatched(costs: Matrix, count: int) -> Sequence[int]:
    """Which domain each of the first `count` dispatches went to; all have work throughout."""
    rounds = 1.3 * count / float((1 / costs).sum())
    with _sqlite() as url, _open(url) as broker:
        broker.enqueue(_backlog(costs, rounds))
        order: list[int] = []
        while len(order) < count:
            leases = broker.claim(["play"], worker="consumer", limit=BATCH, lease_s=LEASE_S)
            order += [int(lease.domain) for lease in leases]
            broker.commit([Done(lease, "group", lease.cost) for lease in leases])
    return order[:count]


def _backlog(costs: Matrix, rounds: float) -> Iterable[Work]:
    """So many items of each domain that it does not run dry in `rounds` of virtual time."""
    for domain, cost in enumerate(costs):
        for n in range(math.ceil(rounds / cost) + 2):
            yield Work(
                kind="play", key=f"{domain}/{n}", domain=str(domain), payload="", cost=float(cost)
            )
