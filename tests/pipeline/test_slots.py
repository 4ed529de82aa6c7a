from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.slots import Slots


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
    restored.restore(ledger)
    assert restored.ledger() == {**ledger, "admitted": ledger["admitted"] - len(held), "held": 0}
