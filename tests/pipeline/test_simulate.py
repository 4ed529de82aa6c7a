"""Simulated runs against what queueing theory, arithmetic and counting say they must come to."""

from __future__ import annotations

import asyncio
import bisect
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InfrastructureError, UsageError
from headrace.pipeline import virtual
from headrace.pipeline.desk import Desk
from headrace.pipeline.simulation import (
    Assumptions,
    EngineModel,
    LogNormal,
    Observed,
    Report,
    assume,
    compare,
    scheduled,
    simulate,
)
from headrace.pipeline.simulation.calibrate import passes_of
from headrace.pipeline.simulation.engine import Engine, Written
from headrace.pipeline.simulation.record import Passage
from headrace.pipeline.virtual import VirtualClock
from simulate_support import GROUPS, PLAY_S, SIZE, TOKENS, domain, recipe, run, world

HEAVY = LogNormal(40.0, 8.0)
SLOW = LogNormal(0.8, 10.0)
BUSY = EngineModel(slots=6, pass_s=0.02, row_s=0.001)


@cache
def heavy(schedule: str, lag: int, *, seed: int = 0, shared: bool = True) -> Report:
    """18 steps of heavy tails in lengths and verdicts, for too few slots and verifiers."""
    made = world(domain(SLOW, HEAVY), learn=0.4, engine=BUSY, verifiers=3, shared=shared)
    return run(made, schedule=schedule, lag=lag, steps=18, seed=seed)


# --- the length of a step ------------------------------------------------------------------


def test_a_synchronous_step_takes_the_sum_of_its_parts() -> None:
    made = run(world(domain(0.5), learn=0.25, update=0.125))
    assert made.step_mean == pytest.approx(PLAY_S + 0.5 + 0.25 + 0.125, abs=1e-6)
    assert made.step_p95 == pytest.approx(made.step_mean, abs=1e-6)
    assert made.samples_per_second == pytest.approx(GROUPS * SIZE / made.step_mean, rel=1e-6)


def whole(lag: int) -> int:
    """Steps of which the steady part is so long that a course that repeats is met as a whole."""
    return (2 * lag + 1) + 4 * (lag + 1)


@pytest.mark.parametrize(("lag", "verdict"), [(1, 1.25), (1, 4.0), (2, 0.5), (2, 4.0)])
def test_a_lockstep_step_hides_verdicts_behind_what_else_there_is_to_do(
    lag: int, verdict: float
) -> None:
    # Batch s + lag is played before step s waits for its own verdicts. With a period of D these
    # have had lag x D seconds by then: D = play + learn + max(0, verdict - lag x D).
    made = run(world(domain(verdict), learn=0.25), lag=lag, steps=whole(lag))
    hidden = PLAY_S + 0.25
    expected = max(hidden, (hidden + verdict) / (lag + 1))
    assert made.step_mean == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("lag", "verdict"), [(1, 0.5), (2, 4.0)])
def test_a_free_step_on_hardware_of_its_own_takes_its_share_of_the_whole_way(
    lag: int, verdict: float
) -> None:
    # lag + 1 steps' groups are under way, and each is back after play + verdict + learn.
    made = run(
        world(domain(verdict), learn=0.25, shared=False),
        schedule="free",
        lag=lag,
        steps=whole(lag),
    )
    expected = max(0.25, (PLAY_S + verdict + 0.25) / (lag + 1))
    assert made.step_mean == pytest.approx(expected, rel=1e-6)


def test_running_free_on_shared_hardware_all_groups_move_together_and_share_their_verdicts() -> (
    None
):
    # Two steps' groups are played and judged at once and then learned from one after the other.
    made = run(world(domain(1.5), learn=0.25), schedule="free", lag=1, steps=11)
    assert made.step_mean == pytest.approx(0.25 + (PLAY_S + 1.5) / 2, rel=1e-6)


def test_books_and_other_overheads_lengthen_a_step() -> None:
    made = world(domain(0.5), learn=0.25)
    slower = replace(
        made,
        engine=replace(made.engine, prefill_s=0.01),
        learner=replace(made.learner, token_s=0.001, books_s=0.05),
    )
    more = run(slower).step_mean - run(made).step_mean
    assert more == pytest.approx(GROUPS * 0.01 + 0.001 * GROUPS * SIZE * TOKENS + 0.05, abs=1e-6)


# --- queueing laws -------------------------------------------------------------------------


def overlap(
    spans: Sequence[tuple[float | None, float | None]], since: float, until: float
) -> float:
    """Seconds that the spans have inside a window; one without an end is open."""
    total = 0.0
    for start, end in spans:
        if start is not None:
            total += max(0.0, min(until, until if end is None else end) - max(since, start))
    return total


@pytest.mark.parametrize(("schedule", "lag"), [("lockstep", 1), ("free", 2)])
def test_littles_law_holds_for_every_queue_of_groups(schedule: str, lag: int) -> None:
    made = heavy(schedule, lag)
    seconds = made.until - made.since
    ways = made.passages
    for mean, spans in (
        (made.queues.queued, [(p.admitted, p.begun) for p in ways]),
        (made.queues.playing, [(p.begun, p.played) for p in ways]),
        (made.queues.ready, [(p.ready, p.trained) for p in ways]),
    ):
        assert mean == pytest.approx(overlap(spans, made.since, made.until) / seconds, abs=1e-9)
    inside = [p for p in ways if p.trained is not None and made.since < p.trained <= made.until]
    rate = len(inside) / seconds
    stay = statistics.fmean(p.trained - p.admitted for p in inside if p.trained is not None)
    held = [(p.admitted, p.trained) for p in ways]
    mean = overlap(held, made.since, made.until) / seconds
    assert mean == pytest.approx(rate * stay, rel=0.1)


@pytest.mark.parametrize("lag", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_staleness_is_what_is_in_flight_and_queued_over_the_groups_of_a_step(lag: int) -> None:
    made = heavy("free", lag, shared=False)
    # Every slot is always held; of (lag + 1) x GROUPS groups, lag x GROUPS are not the step's own.
    assert made.staleness.admission == pytest.approx(lag)
    # The same law for groups that were begun: from there on they stay N / GROUPS steps, of which
    # the last is their own, and the first is counted whole though only a part of it is left.
    begun = [(p.begun, p.trained) for p in made.passages]
    mean = overlap(begun, made.since, made.until) / (made.until - made.since)
    ends = sorted({p.trained for p in made.passages if p.trained is not None})
    phases = [
        phase(p.begun, ends)
        for p in made.passages
        if p.begun is not None and p.trained is not None and made.since < p.trained <= made.until
    ]
    expected = mean / GROUPS - 1 + statistics.fmean(phases)
    assert made.staleness.mean == pytest.approx(expected, rel=0.12)
    assert made.staleness.most <= lag


def phase(instant: float, ends: list[float]) -> float:
    """Which share of its step was over at an instant."""
    after = bisect.bisect_right(ends, instant)
    start = ends[after - 1] if after else 0.0
    return (instant - start) / (ends[after] - start)


def test_verifiers_are_as_busy_as_the_verdicts_they_are_asked_for() -> None:
    made = run(world(domain(0.5), learn=0.25, verifiers=4), lag=1)
    assert made.busy.verifiers == pytest.approx(0.5 * made.samples_per_second / 4, rel=1e-6)


# --- nothing is lost, nothing preferred ----------------------------------------------------


def counted(made: Report) -> None:
    """Every group was trained on, rejected for a reason, or is under way; none twice."""
    trained = [p for p in made.passages if p.trained_on is not None]
    rejected = Counter(p.rejected for p in made.passages if p.rejected is not None)
    assert len({p.group for p in made.passages}) == made.admitted
    assert (len(trained), dict(rejected)) == (made.trained, dict(made.rejected))
    assert made.admitted == made.trained + sum(made.rejected.values()) + made.held


@pytest.mark.parametrize(("schedule", "lag"), [("lockstep", 1), ("free", 2)])
def test_conservation_with_faults_hangs_and_groups_that_teach_nothing(
    schedule: str, lag: int
) -> None:
    made = run(
        world(domain(SLOW, HEAVY, faults=0.2, hangs=0.02), engine=BUSY, deadline=5.0, verifiers=4),
        schedule=schedule,
        lag=lag,
        steps=8,
        algorithm={"dynamic_sampling": True},
        play={"group_size": 3},
    )
    counted(made)
    assert made.faults > 0
    assert made.rejected["no spread"] > 0
    steps = Counter(p.trained_on for p in made.passages if p.trained_on is not None)
    assert sorted(steps) == list(range(len(steps)))
    assert len(steps) > 4
    assert all(p.trained_on - p.version <= lag for p in made.passages if p.trained_on is not None)


def test_what_is_trained_on_is_as_long_as_what_was_dispatched() -> None:
    # Whoever drops or puts off the slow ones trains on shorter answers than the policy gives.
    free = heavy("free", 2)
    plain = heavy("lockstep", 0)

    def lengths(made: Report) -> list[tuple[int, ...]]:
        return sorted(p.lengths for p in made.passages if p.trained_on is not None)

    assert lengths(free) == lengths(plain)
    assert free.held == 0
    longest = max(free.passages, key=lambda p: max(p.lengths))
    assert longest.trained_on is not None
    assert longest.trained_on - longest.version <= 2


def test_the_same_seed_gives_the_same_report_and_another_one_another() -> None:
    again = heavy.__wrapped__("free", 2)
    assert again == heavy("free", 2)
    assert again != heavy("free", 2, seed=4)


@pytest.mark.parametrize("schedule", ["free", pytest.param("lockstep", marks=pytest.mark.slow)])
def test_not_asking_the_queue_in_vain_changes_nothing(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = recipe(steps=5, schedule=schedule, lag=1)
    slow, fast = domain(SLOW, HEAVY, "slow", faults=0.3), domain(0.1, name="fast", weight=2.0)
    made = world(slow, fast, engine=BUSY, verifiers=3)
    told = simulate(plan, made)
    monkeypatch.setattr(Desk, "may_have", lambda *_: True)
    assert simulate(plan, made) == told


# --- what fails, and what is slow ----------------------------------------------------------


def test_a_run_starts_from_empty_queues_with_one_verifier() -> None:
    made = run(world(domain(0.5), verifiers=1), schedule="free", lag=3, steps=4)
    first = min(p.trained for p in made.passages if p.trained is not None)
    assert first == pytest.approx(PLAY_S + GROUPS * SIZE * 0.5 + 0.25, abs=1e-6)
    counted(made)


def test_verdicts_of_verifiers_that_die_are_given_by_others() -> None:
    quiet = run(world(domain(0.5)), lag=1)
    made = run(world(domain(0.5, faults=0.3)), lag=1)
    assert made.faults > 5
    assert made.trained == quiet.trained == 13 * GROUPS
    assert made.step_mean > quiet.step_mean


def test_verdicts_that_never_come_cost_their_deadline_and_no_more() -> None:
    made = run(world(domain(0.5, hangs=0.1), deadline=3.0))
    assert made.trained == 13 * GROUPS
    assert PLAY_S + 0.25 + 0.5 < made.step_mean <= PLAY_S + 0.25 + 3.0 + 1e-6


def test_an_outage_that_is_shorter_than_the_retries_loses_nothing() -> None:
    made = run(world(domain(0.5, down=(4.0, 10.0))), lag=1)
    waited = [p for p in made.passages if p.played is not None and 4.0 <= p.played < 10.0]
    assert waited
    assert all(p.ready is not None and p.ready >= 10.0 for p in waited)
    assert made.trained == 13 * GROUPS


def test_a_wait_in_which_nothing_comes_for_the_patience_of_the_recipe_ends_the_run() -> None:
    with pytest.raises(InfrastructureError, match="waited 60 s for"):
        run(world(domain(500.0)), play={"patience": 60.0})


def waits(made: Report, name: str) -> list[float]:
    """Seconds from being played to the last verdict."""
    return [
        p.ready - p.played
        for p in made.passages
        if p.domain == name and p.ready is not None and p.played is not None
    ]


def test_a_slow_domain_slows_only_itself() -> None:
    fast, slow = domain(0.2, name="fast"), domain(30.0, name="slow", weight=0.25)
    made = run(world(fast, slow, verifiers=32, shared=False), schedule="free", lag=3, steps=16)
    assert len(waits(made, "slow")) > 2
    assert max(waits(made, "fast")) == pytest.approx(0.2, abs=1e-6)
    assert min(waits(made, "slow")) >= 30.0


# --- shares of time ------------------------------------------------------------------------


def test_idle_shares_are_those_of_the_world() -> None:
    made = run(world(domain(0.5), learn=0.25, update=0.125))
    whole = PLAY_S + 0.5 + 0.25 + 0.125
    assert made.busy.sampler == pytest.approx(PLAY_S / whole)
    assert made.busy.learner == pytest.approx(0.25 / whole)
    assert made.busy.sampler_idle == pytest.approx(
        {"learning": 0.25 / whole, "verdicts": 0.5 / whole, "weights": 0.125 / whole}
    )
    assert made.busy.learner_idle == pytest.approx(
        {"sampling": PLAY_S / whole, "verdicts": 0.5 / whole, "weights": 0.125 / whole}
    )


def test_a_sampler_that_is_never_let_down_by_verdicts_is_never_idle_for_them() -> None:
    made = run(world(domain(0.5), learn=0.25), lag=1)
    assert made.busy.sampler == pytest.approx(PLAY_S / (PLAY_S + 0.25))
    assert made.busy.sampler_idle == pytest.approx({"learning": 0.25 / (PLAY_S + 0.25)})


@pytest.mark.parametrize(("schedule", "lag"), [("lockstep", 1), ("free", 2)])
def test_shares_of_time_add_up(schedule: str, lag: int) -> None:
    busy = heavy(schedule, lag).busy
    assert busy.sampler + sum(busy.sampler_idle.values()) == pytest.approx(1.0)
    assert busy.learner + sum(busy.learner_idle.values()) == pytest.approx(1.0)


# --- the engine ----------------------------------------------------------------------------


def finished(model: EngineModel, groups: list[list[int]]) -> list[float]:
    """When each group is done, all of them being started at once."""
    clock = VirtualClock()

    async def main() -> list[float]:
        engine = Engine(model, clock, lambda: None)
        ends = [0.0] * len(groups)
        enough = [len(group) for group in groups]

        async def wait(number: int, future: asyncio.Future[list[Written]]) -> None:
            await future
            ends[number] = clock.elapsed

        await asyncio.gather(*(wait(n, f) for n, f in enumerate(engine.begin(groups, enough))))
        return ends

    return virtual.run(main(), clock=clock)


def test_passes_are_slower_the_more_rows_there_are() -> None:
    model = EngineModel(slots=8, pass_s=0.5, row_s=0.25)
    assert finished(model, [[3], [5]]) == pytest.approx([3 * 1.0, 3 * 1.0 + 2 * 0.75])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_the_engine_does_what_passes_one_by_one_would(groups: list[list[int]], slots: int) -> None:
    left = [[group, length] for group, lengths in enumerate(groups) for length in lengths]
    now, ends, passes = 0.0, [0.0] * len(groups), 0
    while left:
        flying = left[:slots]
        now += 0.5 + 0.25 * len(flying)
        passes += 1
        for row in flying:
            row[1] -= 1
            if not row[1]:
                ends[row[0]] = now
                left.remove(row)
    model = EngineModel(slots=slots, pass_s=0.5, row_s=0.25)
    assert finished(model, groups) == pytest.approx(ends)
    assert passes_of([n for lengths in groups for n in lengths], slots) == passes


def test_tokens_carry_the_version_that_wrote_them() -> None:
    clock = VirtualClock()

    async def main() -> list[tuple[int, int]]:
        engine = Engine(EngineModel(slots=4, pass_s=1.0), clock, lambda: None)
        (future,) = engine.begin([[10]], [1])
        await asyncio.sleep(3.0)
        engine.publish(1)
        await asyncio.sleep(2.0)
        engine.hold()
        await asyncio.sleep(100.0)
        engine.publish(2)
        engine.go_on()
        (written,) = await future
        return [(span.version, span.count) for span in written.versions]

    assert virtual.run(main(), clock=clock) == [(0, 3), (1, 2), (2, 5)]
    assert clock.elapsed == pytest.approx(110.0)


def test_of_a_group_with_spare_attempts_the_first_to_end_stay_and_the_others_make_room() -> None:
    clock = VirtualClock()

    async def main() -> list[int]:
        engine = Engine(EngineModel(slots=3, pass_s=1.0), clock, lambda: None)
        spared, other = engine.begin([[50, 2, 4, 60], [3]], [2, 1])
        kept = [written.attempt for written in await spared]
        assert clock.elapsed == pytest.approx(4.0)
        assert engine.rows == 1
        await other
        return kept

    assert virtual.run(main(), clock=clock) == [1, 2]
    assert clock.elapsed == pytest.approx(7.0)


# --- choosing ------------------------------------------------------------------------------


def test_all_schedules_meet_the_same_world() -> None:
    made = world(domain(SLOW, HEAVY), engine=BUSY)
    reports = compare(recipe(steps=4), made, [1])
    assert [report.title for report in reports] == [
        "synchronous",
        "lockstep, lag 1",
        "free, lag 1",
    ]
    met = [sorted(p.lengths for p in report.passages) for report in reports]
    assert all(lengths == met[0] for lengths in met)


def test_an_assumed_world_takes_the_seconds_that_were_said() -> None:
    plan = recipe(steps=20)
    said = Assumptions(play_s=40.0, learn_s=6.0, verdict_s=9.0, verdict_tail=1.0, verifiers=64)
    made = simulate(plan, assume(plan, said))
    assert made.seconds / 20 == pytest.approx(40.0 + 6.0 + 9.0)


def test_what_no_world_has_is_refused() -> None:
    plan = recipe()
    for said in (
        Assumptions(play_s=0.0),
        Assumptions(batch_cost=1.5),
        Assumptions(length_tail=0.5),
        Assumptions(verdict_s=-1.0),
        Assumptions(faults=1.0),
    ):
        with pytest.raises(UsageError):
            assume(plan, said)


def test_lengths_that_were_seen_are_drawn_again() -> None:
    made = run(world(domain(0.5, Observed((7.0, 11.0)))), steps=10)
    assert {n for p in made.passages for n in p.lengths} == {7, 11}


@pytest.mark.slow
def test_a_thousand_verifiers_and_512_slots_are_simulated_within_a_minute() -> None:
    plan = recipe(steps=50, schedule="free", lag=2, play={"groups": 64, "group_size": 8})
    busy = EngineModel(slots=512, pass_s=0.02, row_s=0.0001)
    made = world(domain(LogNormal(20.0, 10.0), HEAVY), engine=busy, verifiers=1000)
    report = simulate(scheduled(plan, "free", 2), made)
    assert report.trained == 50 * 64


def test_a_passage_that_was_not_trained_on_has_no_age() -> None:
    with pytest.raises(AssertionError, match="was not trained on"):
        _ = Passage(group="a", admitted=0.0, version=0).staleness
