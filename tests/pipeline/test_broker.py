"""What the broker promises, on SQLite and on a real Postgres alike."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from broker_support import START, Hand, OpenBroker, Worker, done, keys, work
from headrace.pipeline.broker import Broker, Limits, Retry, Trouble

# --- in and out ----------------------------------------------------------------------------


def test_work_goes_from_enqueued_to_done_once(broker: Broker, worker: Worker) -> None:
    assert broker.enqueue([work("a", group="g", batch="b", cost=7.0, payload="task:1")]) == 1
    [lease] = worker.claim(5)
    assert (lease.kind, lease.key, lease.domain, lease.payload) == ("play", "a", "math", "task:1")
    assert (lease.group, lease.batch, lease.cost, lease.attempt) == ("g", "b", 7.0, 1)
    assert (lease.worker, lease.expires) == ("worker-1", START + 60.0)
    assert worker.claim() == []
    assert broker.commit([done(lease)]) == []
    assert worker.claim() == []
    assert broker.stats().kinds[0].done == 1


def test_enqueueing_again_changes_nothing_whatever_state_the_item_is_in(
    broker: Broker, worker: Worker
) -> None:
    assert broker.enqueue([work("a"), work("a", domain="code"), work("a", kind="verify")]) == 2
    assert broker.enqueue([work("a"), work("b")]) == 1
    leases = worker.claim(5)
    assert keys(leases) == ["a", "b"]
    broker.commit([done(leases[0])])
    assert broker.enqueue([work("a"), work("b")]) == 0
    assert worker.claim(5) == []


def test_a_domains_items_come_in_the_order_they_were_enqueued(
    broker: Broker, worker: Worker
) -> None:
    names = [f"{n:02d}" for n in (5, 3, 9, 1, 7, 2, 8)]
    broker.enqueue([work(name) for name in names])
    assert keys(worker.claim(3)) + keys(worker.claim(10)) == names


def test_enqueueing_nothing_and_committing_nothing_is_no_error(broker: Broker) -> None:
    assert broker.enqueue([]) == 0
    assert broker.commit([]) == []
    assert broker.heartbeat([], 5.0) == []


def test_what_cannot_be_stored_as_text_is_refused_where_it_is_made() -> None:
    for text in ("nul \0", "lone \ud800"):
        with pytest.raises(ValueError, match="cannot be stored"):
            work("a", payload=text)
    with pytest.raises(ValueError, match="not above 0"):
        work("a", cost=0.0)
    assert work("a", payload="日本語 🚰").payload == "日本語 🚰"


def test_text_of_any_language_comes_back_as_it_was(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work("ключ '\"; DROP TABLE--", domain="日本語", payload="%s 🚰")])
    [lease] = worker.claim()
    assert (lease.key, lease.domain) == ("ключ '\"; DROP TABLE--", "日本語")
    assert lease.payload == "%s 🚰"
    broker.fail(lease, kind_of_failure="poison", evidence="nul \0 and lone \ud800")
    assert broker.stats().kinds[0].waiting == 1


# --- leases and fencing --------------------------------------------------------------------


def test_an_expired_lease_is_redone_and_its_late_commit_is_fenced(
    broker: Broker, worker: Worker, hand: Hand
) -> None:
    broker.enqueue([work("a")])
    [late] = worker.claim(lease_s=10)
    hand.time += 9.9
    assert broker.expire() == []
    hand.time += 0.2
    [expired] = broker.expire()
    assert (expired.key, expired.token, expired.worker) == ("a", late.token, "worker-1")
    [again] = Worker(broker, "worker-2").claim()
    assert again.attempt == 2
    follow = work("a/0", kind="verify")
    assert broker.commit([done(late, 1.0, follow)]) == [done(late, 1.0, follow)]
    assert worker.claim(kinds=["verify"]) == []
    assert broker.commit([done(again, 1.0, follow)]) == []
    assert keys(worker.claim(5, kinds=["verify"])) == ["a/0"]


def test_a_lease_whose_time_is_over_counts_until_somebody_takes_it_away(
    broker: Broker, worker: Worker, hand: Hand
) -> None:
    broker.enqueue([work("a")])
    [lease] = worker.claim(lease_s=10)
    hand.time += 100
    assert broker.heartbeat([lease], 10) == []
    assert broker.expire() == []
    hand.time += 100
    assert broker.commit([done(lease)]) == []


def test_a_heartbeat_lengthens_a_lease_and_tells_which_are_lost(
    broker: Broker, worker: Worker, hand: Hand
) -> None:
    broker.enqueue([work("a"), work("b")])
    a, b = worker.claim(2, lease_s=10)
    hand.time += 8
    assert broker.heartbeat([a], 10) == []
    hand.time += 8
    assert keys(broker.expire()) == ["b"]
    assert broker.heartbeat([a, b], 10) == [b]


def test_of_two_workers_with_one_name_only_the_latest_lease_counts(
    broker: Broker, opened: OpenBroker
) -> None:
    broker.enqueue([work("a")])
    [old] = Worker(broker, "twin").claim()
    other = opened()
    assert other.reset("twin") == 1
    [new] = Worker(other, "twin").claim()
    assert old.worker == new.worker
    assert old.token != new.token
    assert broker.heartbeat([old], 10) == [old]
    assert broker.commit([done(old)]) == [done(old)]
    assert other.commit([done(new)]) == []
    assert not broker.release(old)
    assert broker.stats().kinds[0].done == 1


def test_duplicated_and_delayed_results_have_one_effect(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work(name) for name in "abc"])
    a, b, c = worker.claim(3)
    first, second = done(a, 1.0, work("t1")), done(a, 1.0, work("t2"))
    assert broker.commit([done(c), first, second]) == [second]
    assert broker.commit([first, done(b)]) == [first]
    assert keys(worker.claim(5)) == ["t1"]
    assert broker.stats().kinds[0].done == 3


def test_an_old_and_a_new_lease_in_one_commit_are_told_apart(
    broker: Broker, worker: Worker, hand: Hand
) -> None:
    broker.enqueue([work("a"), work("b")])
    old = worker.claim(2, lease_s=1)
    hand.time += 2
    broker.expire()
    new = worker.claim(2)
    results = [done(old[0], 1.0, work("wrong")), done(new[0], 1.0, work("right")), done(old[1])]
    assert broker.commit(results) == [results[0], results[2]]
    assert keys(worker.claim(5)) == ["right"]


def test_tokens_never_repeat(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work(str(n)) for n in range(20)])
    seen: list[int] = []
    for _ in range(10):
        leases = worker.claim(20)
        seen += [lease.token for lease in leases]
        broker.reset("worker")
    assert len(seen) == len(set(seen)) == 200


def test_reset_voids_the_leases_of_workers_with_a_prefix_and_counts_no_attempt(
    broker: Broker,
) -> None:
    broker.enqueue([work(name) for name in "abc"])
    [mine] = Worker(broker, "run_1/judge-1").claim()
    [other] = Worker(broker, "Run_1/judge-1").claim()
    [third] = Worker(broker, "runX1/judge-1").claim()
    assert broker.reset("run_1") == 1
    assert broker.commit([done(mine)]) == [done(mine)]
    assert broker.commit([done(other), done(third)]) == []
    [again] = Worker(broker).claim()
    assert (again.key, again.attempt) == (mine.key, 1)


def test_release_gives_back_without_counting_an_attempt(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work("a"), work("b")])
    [lease] = worker.claim()
    assert broker.release(lease)
    assert not broker.release(lease)
    [again] = worker.claim()
    assert (again.key, again.attempt) == ("a", 1)


def test_concurrent_claimers_never_get_the_same_item(opened: OpenBroker) -> None:
    brokers = [opened(), opened()]
    brokers[0].enqueue([work(f"{n}", domain=f"d{n % 7}", cost=1 + n % 5) for n in range(240)])
    claimed: list[str] = []
    fenced: list[object] = []

    def consume(broker: Broker, name: str) -> None:
        while leases := Worker(broker, name).claim(5):
            claimed.extend(keys(leases))
            fenced.extend(broker.commit([done(lease, 2.0) for lease in leases]))

    threads = [
        threading.Thread(target=consume, args=(brokers[n % 2], f"worker-{n}")) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert max(Counter(claimed).values()) == 1
    assert len(claimed) == 240
    assert fenced == []
    assert brokers[0].stats().kinds[0].done == 240
    assert {(s.ready, s.running) for s in brokers[0].stats().shares} <= {(0, n) for n in range(99)}


# --- failures ------------------------------------------------------------------------------


def test_a_failed_attempt_pauses_longer_each_time_and_ends_as_a_dead_letter(
    opened: OpenBroker, hand: Hand
) -> None:
    broker = opened(retry=Retry(attempts=3, base_s=2.0, factor=3.0, jitter=0.0))
    worker = Worker(broker)
    broker.enqueue([work("a", group="g")])
    for attempt, pause in ((1, 2.0), (2, 6.0)):
        [lease] = worker.claim()
        assert lease.attempt == attempt
        assert broker.fail(lease, kind_of_failure="infrastructure", evidence=f"no {attempt}")
        hand.time += pause - 0.1
        assert worker.claim() == []
        hand.time += 0.2
    [lease] = worker.claim()
    assert not broker.fail(lease, kind_of_failure="infrastructure", evidence="no 3")
    [letter] = broker.dead()
    assert (letter.kind, letter.key, letter.attempts, letter.group) == ("play", "a", 3, "g")
    assert letter.evidence == ("no 1", "no 2", "no 3")
    assert worker.claim() == []


def test_poison_is_given_up_sooner(opened: OpenBroker, hand: Hand) -> None:
    broker = opened(retry=Retry(attempts=9, poison_attempts=2, jitter=0.0))
    worker = Worker(broker)
    broker.enqueue([work("a")])
    again: list[bool] = []
    causes: tuple[Trouble, ...] = ("poison", "infrastructure", "poison")
    for cause in causes:
        [lease] = worker.claim()
        again.append(broker.fail(lease, kind_of_failure=cause, evidence=cause))
        hand.time += 1000
    assert again == [True, True, False]
    assert broker.dead()[0].evidence == ("poison", "infrastructure", "poison")


def test_an_item_whose_workers_keep_dying_is_poison(opened: OpenBroker, hand: Hand) -> None:
    broker = opened(retry=Retry(attempts=9, deaths=2))
    worker = Worker(broker)
    broker.enqueue([work("a")])
    for _ in range(2):
        assert keys(worker.claim(lease_s=5)) == ["a"]
        hand.time += 6
        assert keys(broker.expire()) == ["a"]
    assert worker.claim() == []
    assert "ran out after 6.0 s" in broker.dead()[0].evidence[1]


def test_a_failure_under_a_lost_lease_changes_nothing(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work("a")])
    [lease] = worker.claim()
    broker.reset("worker")
    [new] = worker.claim()
    assert not broker.fail(lease, kind_of_failure="poison", evidence="late")
    assert broker.commit([done(new)]) == []
    assert broker.dead() == []


def test_dead_letters_can_be_given_all_their_attempts_back(opened: OpenBroker) -> None:
    broker = opened(retry=Retry(attempts=1))
    worker = Worker(broker)
    broker.enqueue([work("a"), work("b")])
    for lease in worker.claim(2):
        broker.fail(lease, kind_of_failure="infrastructure", evidence="no")
    assert broker.requeue_dead(["a", "unknown"]) == 1
    [lease] = worker.claim(5)
    assert (lease.key, lease.attempt) == ("a", 1)
    assert [letter.key for letter in broker.dead()] == ["b"]


def test_pauses_are_spread_by_key_and_the_same_every_time() -> None:
    retry = Retry(base_s=10.0, factor=2.0, most_s=30.0, jitter=0.25)
    pauses = [retry.pause(f"key {n}", 1) for n in range(200)]
    assert pauses == [retry.pause(f"key {n}", 1) for n in range(200)]
    assert min(pauses) >= 7.5
    assert max(pauses) <= 12.5
    assert len(set(pauses)) == 200
    assert abs(sum(pauses) / 200 - 10.0) < 0.4
    assert 22.5 <= retry.pause("key", 9) <= 37.5


# --- time and priority ---------------------------------------------------------------------


def test_put_off_items_wait_for_their_time(broker: Broker, worker: Worker, hand: Hand) -> None:
    broker.enqueue([work("later", not_before=START + 50), work("past", not_before=START - 50)])
    assert keys(worker.claim(5)) == ["past"]
    hand.time += 49
    assert worker.claim(5) == []
    hand.time += 2
    assert keys(worker.claim(5)) == ["later"]


def test_more_urgent_classes_come_first_whatever_the_domain(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work("low", priority=2), work("mid", priority=1, domain="code")])
    broker.enqueue([work("top", priority=0, domain="rg"), work("top 2", priority=0)])
    assert set(keys(worker.claim(2))) == {"top", "top 2"}
    assert keys(worker.claim(5)) == ["mid", "low"]


def test_waiting_makes_an_item_more_urgent_so_that_nothing_starves(
    opened: OpenBroker, hand: Hand
) -> None:
    broker = opened(limits=Limits(aging_s=100.0))
    worker = Worker(broker)
    broker.enqueue([work("old", priority=2, cost=5.0)])
    served: list[str] = []
    for n in range(30):
        broker.enqueue([work(f"urgent {n}", priority=0, domain="code", cost=5.0)])
        served += keys(worker.claim(1))
        hand.time += 10
    assert "old" in served
    assert 20 <= served.index("old") <= 22


def test_aging_goes_one_class_at_a_time(opened: OpenBroker, hand: Hand) -> None:
    broker = opened(limits=Limits(aging_s=100.0))
    worker = Worker(broker)
    broker.enqueue([work("old", priority=2)])
    hand.time += 101
    broker.enqueue([work("new", priority=1, domain="a"), work("last", priority=2, domain="a")])
    assert set(keys(worker.claim(2))) == {"old", "new"}
    assert keys(worker.claim(2)) == ["last"]


def test_between_kinds_the_older_item_comes_first(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work("1"), work("2", kind="verify"), work("3"), work("4", kind="verify")])
    assert keys(worker.claim(3, kinds=["verify", "play"])) == ["1", "2", "3"]
    assert keys(worker.claim(3, kinds=["verify"])) == ["4"]


# --- domains -------------------------------------------------------------------------------


def test_domains_share_by_cost_and_weight(broker: Broker, worker: Worker) -> None:
    broker.set_share("heavy", 3.0)
    broker.enqueue([work(f"l{n}", domain="light", cost=30.0) for n in range(40)])
    broker.enqueue([work(f"h{n}", domain="heavy", cost=10.0) for n in range(400)])
    served = Counter[str]()
    for _ in range(20):
        for lease in worker.claim(10):
            served[lease.domain] += int(lease.cost)
    assert abs(served["heavy"] / 3.0 - served["light"]) <= 10.0 / 3.0 + 30.0


def test_a_domain_that_comes_back_has_saved_nothing_up_and_owes_nothing(
    broker: Broker, worker: Worker
) -> None:
    broker.enqueue([work(f"a{n}", domain="a") for n in range(100)])
    worker.claim(50)
    broker.enqueue([work(f"b{n}", domain="b") for n in range(100)])
    domains = [lease.domain for lease in worker.claim(20)]
    assert abs(domains.count("a") - domains.count("b")) <= 1
    assert domains[:6].count("b") <= 4


def test_what_an_item_really_cost_is_charged_when_it_ends(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work(f"{d}{n}", domain=d, cost=1.0) for n in range(60) for d in "ab"])
    first = worker.claim(2)
    assert sorted(lease.domain for lease in first) == ["a", "b"]
    broker.commit([done(lease, 21.0 if lease.domain == "a" else 1.0) for lease in first])
    domains = [lease.domain for lease in worker.claim(40)]
    assert domains.count("b") - domains.count("a") in (19, 20, 21)


def test_a_domain_at_its_limit_slows_only_itself(broker: Broker, worker: Worker) -> None:
    broker.set_share("slow", limit=2)
    broker.enqueue([work(f"s{n}", domain="slow", priority=n % 2) for n in range(10)])
    broker.enqueue([work(f"f{n}", domain="fast") for n in range(10)])
    leases = worker.claim(20)
    assert Counter(lease.domain for lease in leases) == {"slow": 2, "fast": 10}
    assert worker.claim(20) == []
    slow = [lease for lease in leases if lease.domain == "slow"]
    broker.commit([done(slow[0])])
    assert [lease.domain for lease in worker.claim(20)] == ["slow"]
    broker.set_share("slow", limit=None)
    assert len(worker.claim(20)) == 7


def test_a_limit_that_is_lifted_gives_no_arrears(broker: Broker, worker: Worker) -> None:
    broker.set_share("slow", limit=1)
    broker.enqueue([work(f"{d}{n}", domain=d) for n in range(100) for d in ("fast", "slow")])
    worker.claim(50)
    broker.set_share("slow", limit=None)
    domains = [lease.domain for lease in worker.claim(20)]
    assert abs(domains.count("fast") - domains.count("slow")) <= 2


def test_excluded_domains_are_left_alone_and_get_no_arrears(broker: Broker, worker: Worker) -> None:
    broker.enqueue([work(f"{d}{n}", domain=d) for n in range(100) for d in "ab"])
    assert {lease.domain for lease in worker.claim(50, exclude_domains=["a"])} == {"b"}
    domains = [lease.domain for lease in worker.claim(20)]
    assert abs(domains.count("a") - domains.count("b")) <= 2


def test_claims_of_ten_come_in_the_order_of_claims_of_one(broker: Broker) -> None:
    for kind in ("play", "again"):
        broker.enqueue(
            work(f"{n}", kind=kind, domain=f"d{n % 9}", cost=1.0 + n * n % 50) for n in range(90)
        )
    one_by_one = [keys(Worker(broker).claim(1))[0] for _ in range(60)]
    by_ten = [key for _ in range(6) for key in keys(Worker(broker).claim(10, kinds=["again"]))]
    assert by_ten == one_by_one
