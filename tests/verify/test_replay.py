"""Replayed logs: only what the simulator makes of the actions counts, never what is claimed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact_support import attempts_of, misjudged, part, task_of
from headrace.types import Json, Verdict, content_hash
from headrace.verify.replay import KIND, SimulationReplay, specimens
from headrace.verify.simulators import SIMULATORS, BadWorld, Illegal, chance, replay

GRID: Json = {"map": ["S~G", "..#"]}
SHOP: Json = {"stock": 1, "cash": 10, "price": 5, "cost": 2, "holding": 1, "demand": 3}


def verdict_on(attempt: Json, **answer: Json) -> Verdict:
    verifier = SimulationReplay()
    task = task_of(verifier, {"simulator": "gridworld", "seed": 3, **answer})
    return verifier.judge(task, attempt if isinstance(attempt, str) else json.dumps(attempt))


def test_chance_is_sha256_of_seed_and_step() -> None:
    # printf 7:0 | sha256sum begins with 16 digits that are 5 modulo 6, and so on.
    assert [chance(7, step, 6) for step in range(5)] == [5, 5, 0, 3, 1]


def test_a_shop_by_hand() -> None:
    # Seed 7 wants 5, 5, 0, 3 modulo 6; with demand 5: 20 - 10 + 25 = 35, then 50, 50, 59.
    initial = {**SHOP, "stock": 0, "cash": 20, "demand": 5}
    goal = {"cash": 59, "days": 4}
    end = replay("inventory", seed=7, initial=initial, goal=goal, actions=[5, 5, 0, 3])
    assert (end.state["cash"], end.state["missed"], end.reached) == (59, 0, True)
    assert end.digest == content_hash(end.state)


def test_a_blinker_blinks_and_a_glider_comes_home() -> None:
    blinker = {"cells": [".....", "..#..", "..#..", "..#..", "....."], "toggles": 0}
    row = {"cells": [".....", ".....", ".###.", ".....", "....."]}
    assert replay("automaton", seed=0, initial=blinker, goal=row, actions=["step"]).reached
    glider = {"cells": [".#...", "..#..", "###..", ".....", "....."], "toggles": 0}
    home = {"cells": glider["cells"]}  # on a torus of 5 it is back after 5 * 4 generations
    assert replay("automaton", seed=0, initial=glider, goal=home, actions=["step"] * 20).reached


def test_walls_stop_and_ice_slips_by_the_seed_alone() -> None:
    walks = {
        seed: replay("gridworld", seed=seed, initial=GRID, goal={"at": "G"}, actions=["right"] * 2)
        for seed in range(12)
    }
    slipped = [seed for seed, end in walks.items() if not end.reached]
    assert slipped == [seed for seed in range(12) if chance(seed, 1, 3) == 0]
    assert all(walks[seed].state["at"] == [1, 1] for seed in slipped)
    assert 0 < len(slipped) < 12


@pytest.mark.parametrize(
    ("name", "initial", "action"),
    [
        ("gridworld", GRID, "jump"),
        ("gridworld", GRID, ["up"]),
        ("gridworld", GRID, None),
        ("inventory", SHOP, -1),
        ("inventory", SHOP, True),
        ("inventory", SHOP, 1.0),
        ("inventory", SHOP, 6),
        ("inventory", SHOP, 10**30),
        ("automaton", {"cells": ["..", ".."], "toggles": 1}, [0, 2]),
        ("automaton", {"cells": ["..", ".."], "toggles": 1}, [-1, 0]),
        ("automaton", {"cells": ["..", ".."], "toggles": 1}, [True, 0]),
        ("automaton", {"cells": ["..", ".."], "toggles": 0}, [0, 0]),
    ],
)
def test_what_a_world_does_not_know_is_illegal(name: str, initial: Json, action: Json) -> None:
    world = SIMULATORS[name]
    with pytest.raises(Illegal):
        world.step(world.begin(initial), action, seed=0, number=0)


ACTIONS = {
    "gridworld": st.sampled_from(["up", "down", "left", "right", "jump"]),
    "inventory": st.integers(-1, 6),
    "automaton": st.sampled_from(["step", [0, 1], [1, 1], [9, 9]]),
}
WORLDS: dict[str, tuple[Json, Json]] = {
    "gridworld": (GRID, {"at": "G"}),
    "inventory": (SHOP, {"cash": 12, "days": 2}),
    "automaton": ({"cells": ["#..", "...", ".#."], "toggles": 2}, {"alive": 3}),
}


@settings(max_examples=60)
@given(st.sampled_from(sorted(WORLDS)), st.data(), st.integers(0, 5))
def test_a_log_has_one_final_state_and_leaves_the_initial_one_alone(
    name: str, data: st.DataObject, seed: int
) -> None:
    initial, goal = WORLDS[name]
    before = json.dumps(initial)
    actions = data.draw(st.lists(ACTIONS[name], max_size=8))
    ends = [replay(name, seed=seed, initial=initial, goal=goal, actions=actions) for _ in range(2)]
    assert ends[0] == ends[1]
    assert json.dumps(initial) == before
    assert not (ends[0].reached and ends[0].illegal is not None)


@pytest.mark.parametrize(
    ("name", "initial"),
    [
        ("gridworld", {"map": ["..", "."]}),
        ("gridworld", {"map": ["SS"]}),
        ("gridworld", []),
        ("inventory", {**SHOP, "cash": -1}),
        ("inventory", {**SHOP, "cash": 1.5}),
        ("automaton", {"cells": ["x"], "toggles": 0}),
    ],
)
def test_a_world_that_cannot_be_is_the_tasks_fault(name: str, initial: Json) -> None:
    with pytest.raises(BadWorld):
        SIMULATORS[name].begin(initial)


def test_claims_are_compared_with_the_replay() -> None:
    world: Json = {"initial": {"map": ["S.G"]}, "goal": {"at": "G"}}
    honest = content_hash({"map": ["S.G"], "at": [0, 2], "coins": 0})
    walk = ["right", "right"]
    assert verdict_on({"actions": walk, "final": honest}, **world).score == 1.0
    assert verdict_on({"actions": walk}, **world).score == 1.0
    assert verdict_on({"actions": walk}, **world, claim=True).score == 0.0
    lied = verdict_on({"actions": walk, "final": honest[::-1]}, **world)
    assert (lied.score, part(lied, "hack")) == (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "right, right",
        "[]",
        "{}",
        '{"actions": "right"}',
        '{"actions": [], "actions": ["right"]}',
        "[" * 100_000,
        '{"actions": [' + "9" * 5000 + "]}",
        '{"actions": ["right"], "done": true}',
    ],
)
def test_what_is_no_log_scores_nothing(text: str) -> None:
    verdict = verdict_on(text, initial={"map": ["SG"]}, goal={"at": "G"})
    assert (verdict.score, part(verdict, "extracted")) == (0.0, 0.0)


def test_a_budget_costs_its_weight_and_too_many_actions_everything() -> None:
    world: Json = {
        "initial": {"map": ["SG"]},
        "goal": {"at": "G"},
        "budget": 1,
        "steps_weight": 1.0,
        "most_actions": 5,
    }
    scores = [verdict_on({"actions": ["left"] * n + ["right"]}, **world).score for n in (0, 3, 5)]
    assert scores == [1.0, (1 + 1 / 4) / 2, 0.0]


@pytest.mark.parametrize(
    "world",
    [
        {"initial": {"map": ["SG"]}, "goal": {}},
        {"initial": {"map": ["SG"]}, "goal": {"coins": 0}},
        {"initial": {"map": []}, "goal": {"at": "G"}},
        {"initial": {"map": ["SG"]}, "goal": {"at": "G"}, "simulator": "chess"},
        {"initial": {"map": ["SG"]}},
    ],
)
def test_a_malformed_or_trivial_world_is_not_scored(world: Json) -> None:
    verdict = verdict_on({"actions": ["right"]}, **world)
    assert (verdict.score, verdict.fault) == (None, "task")


def test_specimens_are_judged_as_they_deserve() -> None:
    assert misjudged(specimens()) == {}
    assert KIND.id == SimulationReplay.ref.id


def test_no_trick_is_worth_anything() -> None:
    domain = specimens()
    found = attempts_of("replay", domain)
    assert len(found) >= 4
    scores = {name: domain.verifier.judge(*case).score for name, case in found.items()}
    assert {name: score for name, score in scores.items() if score != 0.0} == {}
