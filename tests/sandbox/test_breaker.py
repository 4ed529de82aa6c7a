"""The breaker, against its rules and against random histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sandbox.pool.breaker import Attempt, Breaker, BreakerPolicy, BreakerState
from sandbox_support import Clock

POLICY = BreakerPolicy(failures=3, share=0.5, window=8, cooldown_s=1.0, cooldown_most_s=5.0)


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(POLICY, clock=clock)
    for _ in range(POLICY.failures):
        breaker.observe(ok=False)
    return breaker


def let_through(breaker: Breaker) -> Attempt:
    attempt = breaker.admit()
    assert attempt is not None
    return attempt


def test_it_opens_at_the_third_failure_in_a_row_and_not_before() -> None:
    breaker = Breaker(POLICY, clock=Clock())
    breaker.observe(ok=False)
    breaker.observe(ok=False)
    assert breaker.state is BreakerState.CLOSED
    breaker.observe(ok=False)
    assert breaker.state is BreakerState.OPEN
    assert breaker.admit() is None


def test_a_success_resets_the_streak() -> None:
    breaker = Breaker(POLICY, clock=Clock())
    for ok in (False, False, True, False, False):
        breaker.observe(ok=ok)
    assert breaker.state is BreakerState.CLOSED


def test_it_opens_where_half_of_a_full_window_failed() -> None:
    breaker = Breaker(POLICY, clock=Clock())
    for ok in (False, True, False, True, False, True, True):
        breaker.observe(ok=ok)
    assert breaker.state is BreakerState.CLOSED  # 3 of 7: the window is not full
    breaker.observe(ok=False)
    assert breaker.state is BreakerState.OPEN  # 4 of 8


def test_half_open_lets_exactly_one_probe_through() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 0.99
    assert breaker.admit() is None
    assert breaker.retry_in == pytest.approx(0.01, abs=1e-6)
    clock.now += 0.01
    assert breaker.state is BreakerState.HALF_OPEN
    probe = let_through(breaker)
    assert breaker.admit() is None
    probe.succeeded()
    assert breaker.state is BreakerState.CLOSED


def test_failed_probes_double_the_cool_down_up_to_its_most_and_success_resets_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    for cooldown in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert breaker.retry_in == pytest.approx(cooldown)
        clock.now += cooldown
        let_through(breaker).failed()
    clock.now += 5.0
    let_through(breaker).succeeded()
    for _ in range(POLICY.failures):
        breaker.observe(ok=False)
    assert breaker.retry_in == pytest.approx(1.0)


def test_a_probe_that_was_given_up_makes_room_for_the_next_at_once() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 1.0
    let_through(breaker).given_up()
    assert breaker.state is BreakerState.HALF_OPEN
    let_through(breaker).succeeded()
    assert breaker.state is BreakerState.CLOSED


def test_what_began_before_it_opened_changes_nothing_later() -> None:
    clock = Clock()
    breaker = Breaker(POLICY, clock=clock)
    early = [let_through(breaker) for _ in range(8)]
    for attempt in early[:3]:
        attempt.failed()
    early[3].succeeded()
    assert breaker.state is BreakerState.OPEN
    clock.now += 1.0
    let_through(breaker).succeeded()
    for attempt in early[4:]:
        attempt.failed()
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures": 0},
        {"share": 0.0},
        {"share": 1.1},
        {"window": 0},
        {"cooldown_s": 0.0},
        {"cooldown_s": 9.0, "cooldown_most_s": 8.0},
        {"growth": 0.9},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BreakerPolicy(**wrong)  # pyright: ignore[reportArgumentType]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0.0, 3.0)),
        st.tuples(st.just("admit"), st.just(0.0)),
        st.tuples(st.sampled_from(["ok", "fail", "give up"]), st.floats(0.0, 1.0)),
        st.tuples(st.sampled_from(["observe ok", "observe fail"]), st.just(0.0)),
    ),
    max_size=80,
)


@given(EVENTS)
def test_in_any_history_one_probe_at_a_time_none_too_early_and_always_one_in_the_end(
    events: list[tuple[str, float]],
) -> None:
    clock = Clock()
    breaker = Breaker(POLICY, clock=clock)
    running: list[Attempt] = []
    probes: list[Attempt] = []
    for what, value in events:
        before = breaker.state
        if what == "wait":
            clock.now += value
        elif what == "admit":
            soon = breaker.retry_in
            attempt = breaker.admit()
            assert (attempt is not None) == (
                before is BreakerState.CLOSED or (before is BreakerState.HALF_OPEN and not probes)
            )
            if attempt is not None:
                assert soon == 0.0
                running.append(attempt)
                probes += [attempt] if before is BreakerState.HALF_OPEN else []
        elif what.startswith("observe"):
            breaker.observe(ok=what.endswith("ok"))
            assert before is BreakerState.CLOSED or breaker.state is before
        elif running:
            attempt = running.pop(int(value * (len(running) - 1)))
            was_probe = attempt in probes
            probes = [each for each in probes if each is not attempt]
            {"ok": attempt.succeeded, "fail": attempt.failed, "give up": attempt.given_up}[what]()
            if before is not BreakerState.CLOSED and not was_probe:
                assert breaker.state is before
        assert len(probes) <= 1
        assert 0.0 <= breaker.retry_in <= POLICY.cooldown_most_s
    for attempt in running:
        attempt.given_up()
    clock.now += POLICY.cooldown_most_s
    assert breaker.admit() is not None
