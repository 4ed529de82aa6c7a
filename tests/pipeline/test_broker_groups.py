"""Groups, batches, bounds and reports of the broker, on SQLite and on a real Postgres alike."""

from __future__ import annotations

from typing import Any

import pytest

from broker_support import START, Hand, OpenBroker, Worker, done, keys, work
from headrace.errors import InfrastructureError
from headrace.pipeline.broker import Backpressure, Broker, Limits, Retry

# --- groups, batches, cancellation ---------------------------------------------------------


def test_a_group_is_enqueued_wholly_and_counted_over_all_kinds(
    opened: OpenBroker, hand: Hand
) -> None:
    broker = opened(retry=Retry(attempts=1))
    worker = Worker(broker)
    broker.enqueue([work("g", group="g")])
    [lease] = worker.claim()
    then = [work(f"g/{n}", kind="verify", group="g") for n in range(4)]
    broker.commit([done(lease, 1.0, *then)])
    first, second, *_ = worker.claim(3, kinds=["verify"])
    broker.commit([done(first)])
    broker.fail(second, kind_of_failure="infrastructure", evidence="no")
    state = broker.group("g")
    assert (state.total, state.done, state.dead, state.cancelled, state.open) == (5, 2, 1, 0, 2)
    state = broker.group("g", "verify")
    assert (state.total, state.done, state.dead, state.open) == (4, 1, 1, 2)
    assert broker.cancel(group="g") == 2
    assert broker.group("g").cancelled == 2
    assert broker.group("unknown").total == 0


def test_a_batch_is_claimed_wholly_or_not_at_all(
    broker: Broker, worker: Worker, hand: Hand
) -> None:
    broker.enqueue([work(f"b{n}", batch="b", domain=f"d{n}") for n in range(4)])
    broker.enqueue([work("late", batch="b", not_before=START + 10), work("other")])
    gang: dict[str, Any] = {"batch": "b", "all_of_batch": True}
    assert worker.claim(9, **gang) == []
    hand.time += 11
    assert worker.claim(4, **gang) == []
    [stray] = worker.claim(1, batch="b")
    assert worker.claim(9, **gang) == []
    broker.release(stray)
    leases = worker.claim(9, **gang)
    assert sorted(keys(leases)) == ["b0", "b1", "b2", "b3", "late"]
    assert keys(worker.claim(9)) == ["other"]
    broker.commit([done(lease) for lease in leases[:2]])
    broker.reset("worker")
    assert sorted(keys(worker.claim(9, **gang))) == sorted(keys(leases[2:]))


def test_a_batch_waits_for_room_in_its_domains_and_is_charged_to_them(
    broker: Broker, worker: Worker
) -> None:
    broker.set_share("math", limit=2)
    broker.enqueue([work(f"b{n}", batch="b") for n in range(3)])
    assert worker.claim(9, batch="b", all_of_batch=True) == []
    assert len(worker.claim(9, batch="b")) == 2
    broker.set_share("math")
    broker.enqueue([work(f"c{n}", domain="code") for n in range(9)])
    assert [lease.domain for lease in worker.claim(2)] == ["code", "code"]


def test_a_batch_claim_leaves_other_batches_and_excluded_domains(
    broker: Broker, worker: Worker
) -> None:
    broker.enqueue([work("a", batch="x"), work("b", batch="y"), work("c", batch="x", domain="d")])
    assert keys(worker.claim(9, batch="x", exclude_domains=["d"])) == ["a"]
    assert worker.claim(9, batch="x", all_of_batch=True, exclude_domains=["d"]) == []


def test_cancelling_fences_what_is_leased_and_takes_back_what_is_not(
    broker: Broker, worker: Worker, hand: Hand
) -> None:
    broker.enqueue([work(name, group="g") for name in "abc"])
    broker.enqueue([work("d", not_before=START + 5, batch="b"), work("e")])
    [lease] = worker.claim()
    assert broker.cancel(group="g") == 3
    assert broker.cancel(batch="b") == 1
    assert broker.cancel(keys=["a", "nothing"]) == 0
    assert broker.commit([done(lease, 1.0, work("then"))]) == [done(lease, 1.0, work("then"))]
    assert broker.heartbeat([lease], 5) == [lease]
    hand.time += 10
    assert keys(worker.claim(9)) == ["e"]
    with pytest.raises(ValueError, match="name keys"):
        broker.cancel()


def test_then_works_are_enqueued_exactly_once(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work("a"), work("b")])
    a, b = worker.claim(2)
    shared = work("next", kind="verify")
    assert broker.commit([done(a, 1.0, shared), done(b, 1.0, shared, work("more"))]) == []
    assert keys(worker.claim(9, kinds=["verify"])) == ["next"]
    assert keys(worker.claim(9)) == ["more"]


def test_what_has_ended_can_be_forgotten_and_what_has_not_stays(
    broker: Broker, worker: Worker
) -> None:
    broker.enqueue([work(f"{n}", batch="b") for n in range(700)])
    broker.commit([done(lease) for lease in worker.claim(698)])
    worker.claim()
    assert broker.forget(keys=["0", "1", "699"]) == 2
    assert broker.forget(batch="b") == 696
    assert broker.stats().kinds[0].leased == broker.stats().kinds[0].ready == 1
    assert broker.enqueue([work("0"), work("699")]) == 1


# --- backpressure --------------------------------------------------------------------------


def test_bytes_beyond_the_bound_are_refused_wholly_until_there_is_room(
    opened: OpenBroker,
) -> None:
    broker = opened(limits=Limits(queued_bytes=100, by_kind={"verify": 1000}))
    worker = Worker(broker)
    broker.enqueue([work("a", size=60), work("v", kind="verify", size=900)])
    assert (broker.room("play"), broker.room("verify"), broker.room("new")) == (40, 100, 100)
    with pytest.raises(Backpressure, match="over 100") as caught:
        broker.enqueue([work("b", size=30), work("c", size=30)])
    assert isinstance(caught.value, InfrastructureError)
    assert keys(worker.claim(9)) == ["a"]
    assert broker.enqueue([work("a", size=60), work("b", size=30)]) == 1
    [lease] = worker.claim()
    assert broker.room("play") == 10
    broker.commit([done(lease)])
    assert broker.room("play") == 40
    broker.cancel(keys=["a"])
    assert broker.room("play") == 100


def test_an_item_larger_than_the_bound_passes_alone_and_then_works_always_do(
    opened: OpenBroker,
) -> None:
    broker = opened(limits=Limits(queued_bytes=100))
    broker.enqueue([work("huge", size=500)])
    assert broker.room("play") == 0
    [lease] = Worker(broker).claim()
    assert broker.commit([done(lease, 1.0, work("then", size=400))]) == []
    assert broker.room("play") == 0
    with pytest.raises(Backpressure):
        broker.enqueue([work("b", size=1)])


# --- reports -------------------------------------------------------------------------------


def test_waits_say_what_waits_on_whom_since_when(opened: OpenBroker, hand: Hand) -> None:
    broker = opened(retry=Retry(base_s=30.0, jitter=0.0))
    worker = Worker(broker, "gpu-0")
    broker.set_share("math", limit=1)
    broker.enqueue([work("a"), work("b"), work("c"), work("x", domain="code", kind="verify")])
    hand.time += 5
    [lease] = worker.claim(lease_s=60)
    hand.time += 5
    [verify] = worker.claim(kinds=["verify"])
    broker.fail(verify, kind_of_failure="infrastructure", evidence="no")
    told = {wait.what: wait for wait in broker.waits()}
    assert set(told) == {"play a", "2 play of math", "1 verify of code"}
    assert told["play a"].on == "worker gpu-0 (attempt 1)"
    assert (told["play a"].since, told["play a"].until) == (START + 5, START + 65)
    assert "limit of 1" in told["2 play of math"].on
    assert (told["2 play of math"].since, told["2 play of math"].until) == (START, None)
    assert told["1 verify of code"].until == START + 40
    broker.commit([done(lease)])
    told = {wait.what: wait for wait in broker.waits()}
    assert told["2 play of math"].on == "a worker that claims play"


def test_stats_count_every_item_in_its_state(opened: OpenBroker, hand: Hand) -> None:
    broker = opened(retry=Retry(attempts=1))
    worker = Worker(broker)
    broker.enqueue([work(name, size=10) for name in "abcdef"])
    broker.enqueue([work("later", not_before=START + 99, size=5), work("v", kind="verify")])
    a, b, _ = worker.claim(3)
    broker.commit([done(a)])
    broker.fail(b, kind_of_failure="infrastructure", evidence="no")
    broker.cancel(keys=["f"])
    play, verify = broker.stats().kinds
    assert (play.kind, play.ready, play.waiting, play.leased) == ("play", 2, 1, 1)
    assert (play.done, play.dead, play.cancelled, play.size) == (1, 1, 1, 35)
    assert play.oldest == START
    assert (verify.kind, verify.ready) == ("verify", 1)


def test_a_broker_that_is_opened_again_goes_on_where_it_was(opened: OpenBroker) -> None:
    first = opened()
    first.set_share("math", 2.0, 5)
    first.enqueue([work(name) for name in "abc"])
    [lease] = Worker(first).claim()
    first.close()
    second = opened()
    assert keys(Worker(second).claim(9)) == ["b", "c"]
    assert second.commit([done(lease)]) == []
    [share] = second.stats().shares
    assert (share.weight, share.limit) == (2.0, 5)


def test_a_claim_of_nothing_is_a_mistake(broker: Broker) -> None:
    for limit, lease_s in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="cannot claim"):
            broker.claim(["play"], worker="w", limit=limit, lease_s=lease_s)
    with pytest.raises(ValueError, match="which batch"):
        broker.claim(["play"], worker="w", limit=1, lease_s=1.0, all_of_batch=True)
    with pytest.raises(ValueError, match="weight"):
        broker.set_share("math", 0.0)
