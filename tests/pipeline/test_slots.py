from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.slots import Slots, choose


def test_a_slot_is_freed_only_by_training_or_a_named_rejection() -> None:
    slots = Slots(groups_per_step=2, max_lag=0)
    slots.admit("a", 0)
    slots.admit("b", 0)
    with pytest.raises(RuntimeError, match="no slot is free"):
        slots.admit("c", 0)
    slots.rejected("a", "no spread")
    slots.admit("c", 0)
    slots.trained("b", 0)
    assert slots.free == 1
    assert slots.ledger() == {
        "admitted": 3,
        "trained": 1,
        "rejected": {"no spread": 1},
        "held": 1,
    }


def test_training_on_a_group_that_is_too_old_is_refused() -> None:
    slots = Slots(groups_per_step=1, max_lag=0)
    slots.admit("a", 3)
    with pytest.raises(RuntimeError, match="1 versions old"):
        slots.trained("a", 4)


@given(st.lists(st.sampled_from(["admit", "train", "reject"]), max_size=60), st.integers(0, 3))
def test_the_ledger_conserves_groups_and_no_sample_is_too_old(moves: list[str], lag: int) -> None:
    slots = Slots(groups_per_step=2, max_lag=lag)
    held: list[tuple[str, int]] = []
    version = trained = 0
    for number, move in enumerate(moves):
        if move == "admit" and slots.free:
            slots.admit(f"g{number}", version)
            held.append((f"g{number}", version))
        elif move == "train" and held and version - held[0][1] <= lag:
            slots.trained(held.pop(0)[0], version)
            trained += 1
            version += trained % 2 == 0
        elif move == "reject" and held:
            slots.rejected(held.pop()[0], "no spread")
    ledger = slots.ledger()
    assert ledger["admitted"] == ledger["trained"] + sum(ledger["rejected"].values()) + len(held)
    assert ledger["held"] == len(held) == slots.capacity - slots.free
    restored = Slots(groups_per_step=2, max_lag=lag)
    restored.restore(ledger, dict(held))
    assert restored.ledger() == ledger
    assert restored.held == slots.held


def test_groups_beyond_the_slots_are_taken_over_and_none_is_admitted_before_they_are_done() -> None:
    slots = Slots(groups_per_step=1, max_lag=0)
    slots.restore({"trained": 4, "rejected": {}}, {"a": 4, "b": 4})
    assert slots.free == 0
    slots.trained("a", 4)
    assert slots.free == 0
    slots.trained("b", 4)
    assert (slots.free, slots.ledger()["admitted"]) == (1, 6)


def test_without_lag_a_step_waits_for_all_of_its_groups() -> None:
    held = {"a": 3, "b": 3}
    assert choose(held, {"b"}, version=3, groups=2, max_lag=0).awaited == ("a",)
    assert choose(held, {"b", "a"}, version=3, groups=2, max_lag=0).groups == ("a", "b")


def test_younger_groups_do_not_overtake_more_than_the_older_can_afford() -> None:
    # four groups of version 0 and one a step: at version 0 three may wait, so one must be taken
    held = {"a": 0, "b": 0, "c": 0, "young": 1}
    found = choose(held, {"young"}, version=1, groups=1, max_lag=3)
    assert found.awaited == ("a", "b", "c")
    found = choose({"a": 0, "b": 0, "young": 1}, {"young"}, version=1, groups=1, max_lag=3)
    assert found.groups == ("young",)


@given(
    seed=st.integers(0, 10_000),
    lag=st.integers(0, 4),
    groups=st.integers(1, 4),
    refuse=st.sampled_from([0.0, 0.3]),
)
def test_whatever_arrives_when_no_group_is_trained_on_beyond_its_lag(
    seed: int, lag: int, groups: int, refuse: float
) -> None:
    """Slots and `choose` together: every admitted group is trained on once, never too late."""
    rng = Random(seed)
    slots = Slots(groups_per_step=groups, max_lag=lag)
    playing: deque[str] = deque()
    ready: set[str] = set()
    trained: list[str] = []
    number = 0
    for version in range(12):
        while True:
            while slots.free:
                slots.admit(f"g{number}", version)
                playing.append(f"g{number}")
                number += 1
            found = choose(slots.held, ready, version=version, groups=groups, max_lag=lag)
            if found.groups:
                break
            playing.rotate(rng.randrange(len(playing)))
            arrived = playing.popleft()
            if rng.random() < refuse:
                slots.rejected(arrived, "no spread")
            else:
                ready.add(arrived)
        for group in found.groups:
            slots.trained(group, version)
            ready.remove(group)
        trained += found.groups
        assert len(found.groups) == groups or refuse
    assert len(set(trained)) == len(trained)
    ledger = slots.ledger()
    assert ledger["admitted"] == ledger["trained"] + sum(ledger["rejected"].values()) + len(
        slots.held
    )
