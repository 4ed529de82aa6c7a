from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.source import TaskSource
from headrace.errors import CheckpointError, RecipeError
from headrace.protocols import Domain
from headrace.recipe import CurriculumSpec, DomainSpec, TaskSpec
from headrace.types import Json, Task
from headrace_arithmetic import Arithmetic
from tasks_support import Numbers

CURRICULUM = CurriculumSpec(window=4, up=0.75, down=0.25, rehearsal=0.3)


def source(
    *entries: DomainSpec, seed: int = 1, curriculum: CurriculumSpec = CURRICULUM
) -> TaskSource:
    chosen = entries or (DomainSpec(name="a", weight=3.0), DomainSpec(name="b"))
    domains: dict[str, Domain] = {entry.name: Numbers(entry.name) for entry in chosen}
    return TaskSource(TaskSpec(domains=chosen, curriculum=curriculum), domains, seed)


def play(tasks: TaskSource, steps: int) -> list[Task]:
    """Draw and record as a loop would: some attempts pass, some fail, one is not judged."""
    drawn: list[Task] = []
    for _ in range(steps):
        task = tasks.next()
        passes = float(int(task.id, 16) % 4 > 0)
        tasks.record(task.domain, task.tier, [passes, 1.0, None])
        drawn.append(task)
    return drawn


def test_training_tasks_are_all_on_the_training_side() -> None:
    assert {task.split for task in play(source(), 300)} == {"train"}


def test_the_same_seed_draws_the_same_tasks_and_another_seed_others() -> None:
    assert play(source(seed=1), 50) == play(source(seed=1), 50)
    assert play(source(seed=1), 50) != play(source(seed=2), 50)


def test_domains_come_up_as_often_as_they_weigh() -> None:
    tasks = source(
        DomainSpec(name="a", weight=6.0), DomainSpec(name="b", weight=3.0), DomainSpec(name="c")
    )
    drawn = Counter(tasks.next().domain for _ in range(4000))
    # Three standard deviations of a binomial share at n = 4000 are at most 0.024.
    for name, share in {"a": 0.6, "b": 0.3, "c": 0.1}.items():
        assert drawn[name] / 4000 == pytest.approx(share, abs=0.024)
        assert tasks.status()[name].share == drawn[name] / 4000


def test_rehearsal_draws_its_share_from_the_open_tiers_below_evenly() -> None:
    tasks = source(DomainSpec(name="a"))
    tasks.record("a", 0, [1.0] * 4)
    tasks.record("a", 1, [1.0] * 4)
    tiers = Counter(tasks.next().tier for _ in range(3000))
    assert tiers[2] / 3000 == pytest.approx(0.7, abs=0.025)
    assert tiers[0] / 3000 == pytest.approx(0.15, abs=0.02)
    assert tiers[1] / 3000 == pytest.approx(0.15, abs=0.02)


def test_only_the_chosen_tiers_are_drawn() -> None:
    tasks = source(DomainSpec(name="a", first_tier=1, last_tier=9))
    assert {tasks.next().tier for _ in range(50)} == {1}
    assert tasks.record("a", 1, [1.0] * 4)[0].after == 2
    assert tasks.record("a", 2, [1.0] * 4) == []  # the domain ends there
    assert {tasks.next().tier for _ in range(100)} == {1, 2}


def test_without_a_curriculum_all_tiers_are_drawn_evenly() -> None:
    tasks = source(DomainSpec(name="a"), curriculum=CurriculumSpec(enabled=False))
    tiers = Counter(tasks.next().tier for _ in range(3000))
    assert all(tiers[tier] / 3000 == pytest.approx(1 / 3, abs=0.03) for tier in range(3))


def test_unscored_attempts_are_counted_and_move_nothing() -> None:
    tasks = source(DomainSpec(name="a"))
    assert tasks.record("a", 0, [None] * 50) == []
    assert tasks.record("a", 0, [1.0, None, 1.0, None, 0.998, 0.9991][:5]) == []
    moves = tasks.record("a", 0, [0.9991])
    assert [(move.before, move.after, move.pass_rate) for move in moves] == [(0, 1, 0.75)]
    status = tasks.status()["a"]
    assert (status.attempts, status.scored, status.passed) == (56, 4, 3)
    assert status.pass_rate == 0.75
    assert (status.tier, status.tiers, status.weight) == (1, 3, 1.0)


def test_before_any_verdict_there_is_no_pass_rate() -> None:
    tasks = source()
    assert {entry.pass_rate for entry in tasks.status().values()} == {None}
    assert {entry.share for entry in tasks.status().values()} == {0.0}
    assert [entry.weight for entry in tasks.status().values()] == [0.75, 0.25]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 40), st.integers(0, 2**63 - 1))
def test_a_restored_source_goes_on_like_the_one_that_never_stopped(stop: int, seed: int) -> None:
    original = source(seed=seed)
    play(original, stop)
    copy = source(seed=seed)
    copy.restore(json.loads(json.dumps(original.state())))
    assert play(copy, 20) == play(original, 20)
    assert copy.state() == original.state()
    assert copy.status() == original.status()


def test_what_was_drawn_before_does_not_matter_to_what_is_drawn_at_a_position() -> None:
    skipping = source()
    state = skipping.state()
    state["position"] = 17
    skipping.restore(state)
    whole = source()
    assert [whole.next() for _ in range(18)][17] == skipping.next()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"position": -1},
        {"position": 1.0},
        {"domains": {}},
        {"domains": {"a": {}, "b": {}}},
        {"domains": None},
        {"more": 1},
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Json]) -> None:
    tasks = source()
    before = tasks.state()
    with pytest.raises(CheckpointError):
        tasks.restore({**before, **change})
    assert tasks.state() == before


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**63 - 1))
def test_no_training_task_is_a_heldout_task_on_any_tier(seed: int) -> None:
    spec = TaskSpec(
        domains=(DomainSpec(name="arithmetic"),), curriculum=CurriculumSpec(enabled=False)
    )
    tasks = TaskSource(spec, {"arithmetic": Arithmetic()}, seed)
    heldout = tasks.heldout(100, tuple(range(10)))
    drawn = [tasks.next() for _ in range(200)]
    assert {task.split for task in heldout} == {"heldout"}
    assert not {task.id for task in heldout} & {task.id for task in drawn}
    assert not {task.problem for task in heldout} & {task.problem for task in drawn}


def test_heldout_tasks_are_distinct_spread_evenly_and_the_same_every_time() -> None:
    tasks = source(DomainSpec(name="a"), DomainSpec(name="b", weight=9.0, first_tier=1))
    found = tasks.heldout(60, (0, 2))
    assert Counter((task.domain, task.tier) for task in found) == {
        (name, tier): 15 for name in "ab" for tier in (0, 2)
    }
    assert len({task.id for task in found}) == 60
    play(tasks, 30)
    assert tasks.heldout(60, (0, 2)) == found
    first = Counter((task.domain, task.tier) for task in tasks.heldout(10))
    assert first == {("a", 0): 5, ("b", 1): 5}


def test_fewer_items_than_domains_do_not_always_favour_the_same_ones() -> None:
    entries = tuple(DomainSpec(name=name) for name in "abcdefgh")
    seen = {source(*entries, seed=seed).heldout(1)[0].domain for seed in range(40)}
    assert len(seen) > 4


def test_a_small_space_gives_all_the_heldout_tasks_it_has() -> None:
    spec = TaskSpec(domains=(DomainSpec(name="arithmetic"),))
    found = TaskSource(spec, {"arithmetic": Arithmetic()}, 5).heldout(5000)
    everything = [Arithmetic().task(0, index) for index in range(1200)]
    expected = {task.id for task in everything if task.split == "heldout"}
    assert {task.id for task in found} == expected
    assert len(found) == len(expected)


def test_a_short_domain_is_made_up_for_by_the_others() -> None:
    domains: dict[str, Domain] = {"tiny": Numbers("tiny", size=20), "wide": Numbers("wide")}
    spec = TaskSpec(domains=(DomainSpec(name="tiny"), DomainSpec(name="wide")))
    found = Counter(task.domain for task in TaskSource(spec, domains, 3).heldout(80))
    assert found["tiny"] + found["wide"] == 80
    assert 0 < found["tiny"] <= 20


class OneSided(Numbers):
    """Its only problem is on one side of the split."""

    def task(self, tier: int, index: int) -> Task:
        wanted = "heldout" if self.name == "heldout-only" else "train"
        candidates = (super(OneSided, self).task(tier, number) for number in range(100))
        return next(task for task in candidates if task.split == wanted)


def test_a_tier_without_a_training_problem_is_a_clear_error() -> None:
    domain = OneSided("heldout-only")
    spec = TaskSpec(domains=(DomainSpec(name=domain.name),))
    tasks = TaskSource(spec, {domain.name: domain}, 0)
    with pytest.raises(RecipeError, match="tier 0 of heldout-only has no training problem"):
        tasks.next()
    assert tasks.position == 0


def test_a_source_without_any_heldout_task_is_a_clear_error() -> None:
    domain = OneSided("train-only")
    tasks = TaskSource(TaskSpec(domains=(DomainSpec(name=domain.name),)), {domain.name: domain}, 0)
    with pytest.raises(RecipeError, match="no held-out task exists"):
        tasks.heldout(5)
    assert tasks.heldout(0) == []


def test_tiers_that_a_domain_does_not_have_are_a_clear_error() -> None:
    with pytest.raises(RecipeError, match=r"a has no tiers from 3 to 2"):
        source(DomainSpec(name="a", first_tier=3))
    with pytest.raises(RecipeError, match=r"a has 3 tiers and none of \[7\]"):
        source(DomainSpec(name="a")).heldout(5, (7,))
    with pytest.raises(RecipeError, match="no domain 'b' is open"):
        TaskSource(TaskSpec(domains=(DomainSpec(name="b"),)), {"a": Numbers("a")}, 0)


def test_a_known_seed_draws_known_tasks() -> None:
    # Fixed so that a change of the drawing rule, which would break every resume, is noticed.
    problems = [task.problem for task in play(source(seed=7), 3)]
    assert problems == ["0:31", "0:426", "0:558"]
