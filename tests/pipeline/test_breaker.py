from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Exit, UsageError
from headrace.pipeline.breaker import Breaker, BreakerOpen, BreakerPolicy, Permit

POLICY = BreakerPolicy(
    failure_rate=0.5, minimum=4, window_s=60.0, pause_s=5.0, longest_pause_s=18.0
)


def fail(breaker: Breaker, now: float, count: int = 1) -> None:
    for permit in [breaker.enter(now) for _ in range(count)]:
        breaker.failed(permit, now, "connection refused")


def succeed(breaker: Breaker, now: float, count: int = 1) -> None:
    for permit in [breaker.enter(now) for _ in range(count)]:
        breaker.succeeded(permit, now)


def is_open(breaker: Breaker, now: float) -> bool:
    try:
        breaker.enter(now)
    except BreakerOpen:
        return True
    return False


def test_it_opens_at_the_failure_rate_but_never_on_too_few_calls() -> None:
    breaker = Breaker("judge", POLICY, now=0.0)
    fail(breaker, 1.0, 3)
    assert breaker.state(1.0).state == "closed"
    succeed(breaker, 2.0, 4)
    fail(breaker, 2.0)
    assert breaker.state(2.0).state == "open"
    assert breaker.state(2.0).failure_rate == 4 / 8


def test_failures_outside_the_window_are_forgotten() -> None:
    breaker = Breaker("judge", POLICY, now=0.0)
    fail(breaker, 0.0, 3)
    assert breaker.state(70.0).ended == 0
    fail(breaker, 70.0, 3)
    assert breaker.state(70.0).state == "closed"


def test_a_refusal_says_who_is_left_alone_for_how_long_and_why() -> None:
    breaker = Breaker("sandbox oci", POLICY, now=0.0)
    fail(breaker, 10.0, 4)
    with pytest.raises(BreakerOpen, match="sandbox oci is left alone for 3 s more") as caught:
        breaker.enter(12.0)
    assert caught.value.where == "connection refused"
    assert caught.value.exit_code is Exit.INFRASTRUCTURE


def test_one_probe_closes_it_or_doubles_the_pause_up_to_the_longest() -> None:
    breaker = Breaker("judge", POLICY, now=0.0)
    fail(breaker, 0.0, 4)
    now, pauses = 0.0, list[float]()
    for _ in range(4):
        due = breaker.state(now).probe_at
        assert due is not None
        pauses.append(due - now)
        now = due
        probe = breaker.enter(now)
        assert breaker.state(now).state == "half-open"
        assert is_open(breaker, now), "a second probe beside the first"
        breaker.failed(probe, now, "still refused")
    assert pauses == [5.0, 10.0, 18.0, 18.0]
    probe = breaker.enter(now + 18.0)
    breaker.succeeded(probe, now + 18.0)
    assert breaker.state(now + 18.0).state == "closed"
    fail(breaker, now + 19.0, 4)
    assert breaker.state(now + 19.0).probe_at == now + 19.0 + 5.0, "the pause begins anew"


def test_results_of_calls_from_before_it_opened_change_nothing() -> None:
    breaker = Breaker("judge", POLICY, now=0.0)
    early = [breaker.enter(0.0) for _ in range(3)]
    fail(breaker, 1.0, 4)
    breaker.succeeded(early[0], 2.0)
    assert is_open(breaker, 2.0)
    probe = breaker.enter(6.0)
    breaker.succeeded(early[1], 7.0)
    breaker.failed(early[2], 7.0, "late")
    assert breaker.state(7.0).state == "half-open"
    breaker.succeeded(probe, 8.0)
    assert breaker.state(8.0).state == "closed"


def test_a_probe_that_is_never_heard_of_does_not_shut_the_boundary_for_ever() -> None:
    breaker = Breaker("judge", POLICY, now=0.0)
    fail(breaker, 0.0, 4)
    lost = breaker.enter(5.0)
    assert is_open(breaker, 9.9)
    second = breaker.enter(10.0)
    breaker.failed(lost, 11.0, "late")
    breaker.succeeded(second, 12.0)
    assert breaker.state(12.0).state == "closed"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("esf"), st.floats(0.0, 4.0)), max_size=80))
def test_no_call_gets_through_a_pause_and_probes_come_one_at_a_time(
    moves: list[tuple[str, float]],
) -> None:
    breaker = Breaker("judge", POLICY, now=0.0)
    now, out = 0.0, list[Permit]()
    for move, passes in moves:
        now += passes
        before = breaker.state(now)
        if move == "e":
            if before.probe_at is not None and now < before.probe_at:
                assert is_open(breaker, now)
            else:
                out.append(breaker.enter(now))
        elif out and move == "s":
            breaker.succeeded(out.pop(0), now)
        elif out:
            breaker.failed(out.pop(0), now, "no")
        after = breaker.state(now)
        assert (after.state == "closed") == (after.probe_at is None)
        if after.probe_at is not None and after.opened > before.opened:
            assert now + 5.0 <= after.probe_at <= now + 18.0


def test_a_policy_that_cannot_work_is_refused() -> None:
    with pytest.raises(UsageError):
        BreakerPolicy(pause_s=10.0, longest_pause_s=5.0)
