"""The stream of recorded data: exact shares, epochs, resuming, the side held back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_support import example
from headrace.data.examples import SourceUnits, Unit
from headrace.data.recorded import RecordedSource
from headrace.data.rows import Refusals, Refused
from headrace.errors import CheckpointError, NoSignalError, RecipeError
from headrace.recipe import DataSource, DataSpec
from headrace.types import Json


def _units(prefix: str, count: int) -> list[Unit]:
    return [(example(f"{prefix}{number}", tokens=2 + number % 5),) for number in range(count)]


def _found(name: str, units: Sequence[Unit]) -> SourceUnits:
    return SourceUnits(units=tuple(units), refusals=Refusals(name))


def _source(
    sizes: Mapping[str, int],
    weights: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    order: str = "shuffled",
    validation: float = 0.0,
) -> RecordedSource:
    spec = DataSpec.model_validate(
        {
            "sources": [
                {"path": name, "weight": (weights or {}).get(name, 1.0), "replay": name == "old"}
                for name in sizes
            ],
            "order": order,
            "validation": validation,
        }
    )
    found = {name: _found(name, _units(name, size)) for name, size in sizes.items()}
    return RecordedSource(spec, found, seed)


def _keys(units: Sequence[Unit]) -> list[str]:
    return [unit[0].key for unit in units]


# --- the mix -------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    st.integers(1, 300),
)
@settings(max_examples=40, deadline=None)
def test_every_source_has_its_share_to_within_a_unit_of_each_other(
    weights: list[float], draws: int
) -> None:
    names = {f"s{number}": weight for number, weight in enumerate(weights)}
    source = _source(dict.fromkeys(names, 7), names)
    counts = Counter(key[:2] for key in _keys(source.next(draws)))
    total = sum(weights)
    for name, weight in names.items():
        assert abs(counts[name] - draws * weight / total) < len(weights)


def test_shares_are_exact_in_the_long_run_whatever_the_sizes() -> None:
    source = _source({"new": 50, "old": 3}, {"new": 9.0, "old": 1.0})
    drawn = _keys(source.next(1000))
    assert Counter(key[:3] for key in drawn) == {"new": 900, "old": 100}
    assert max(Counter(key for key in drawn if key.startswith("old")).values()) == 34
    assert source.replay_share == 0.1
    status = source.status()
    assert (status["old"].share, status["old"].replay, status["new"].replay) == (0.1, True, False)
    assert status["new"].epochs == 18.0
    assert status["new"].tokens == sum(1 + number % 5 for number in range(50))


def test_batches_make_no_difference_to_the_stream() -> None:
    one, other = (_source({"a": 5, "b": 8}, {"a": 2.0}) for _ in range(2))
    parts = [key for n in (3, 1, 7, 9) for key in _keys(one.next(n))]
    assert parts == _keys(other.next(20))


# --- epochs and resuming -------------------------------------------------------------------


def test_every_epoch_has_all_units_once_in_an_order_of_its_own() -> None:
    source = _source({"a": 20})
    epochs = [_keys(source.next(20)) for _ in range(3)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert _keys(_source({"a": 20}).next(20)) == epochs[0]
    assert _keys(_source({"a": 20}, seed=1).next(20)) != epochs[0]


@pytest.mark.parametrize("order", ["shuffled", "curriculum", "given"])
@pytest.mark.parametrize("done", [0, 7, 20, 33, 41, 59])
def test_a_resumed_run_goes_on_with_the_right_order_in_any_epoch(order: str, done: int) -> None:
    whole = _source({"a": 20, "b": 6}, order=order)
    if done:
        whole.next(done)
    state: Json = json.loads(json.dumps(whole.state()))
    rest = _keys(whole.next(45))
    resumed = _source({"a": 20, "b": 6}, order=order)
    resumed.restore(state)
    assert resumed.position == done
    assert _keys(resumed.next(45)) == rest


def test_a_state_of_other_data_or_another_seed_is_refused() -> None:
    source = _source({"a": 20})
    state = source.state()
    with pytest.raises(CheckpointError, match="seed"):
        _source({"a": 20}, seed=1).restore(state)
    with pytest.raises(CheckpointError, match="other sources"):
        _source({"b": 20}).restore(state)
    with pytest.raises(CheckpointError, match="not those that the run began with"):
        _source({"a": 21}).restore(state)
    for broken in (None, {}, {"seed": 0, "sources": {"a": {"drawn": -1, "content": ""}}}):
        with pytest.raises(CheckpointError):
            source.restore(broken)


# --- order ---------------------------------------------------------------------------------


def test_a_curriculum_begins_with_the_easy_and_the_short_and_then_shuffles() -> None:
    units: list[Unit] = [
        (example("long", tokens=9, score=1.0),),
        (example("hard", tokens=2, score=0.1),),
        (example("short", tokens=3, score=1.0),),
        (example("middle", tokens=5, score=0.5),),
        *_units("x", 10),
    ]
    spec = DataSpec(sources=(DataSource(path="a"),), order="curriculum", validation=0.0)
    source = RecordedSource(spec, {"a": _found("a", units[:4])}, 0)
    assert _keys(source.next(4)) == ["short", "long", "middle", "hard"]
    many = RecordedSource(spec, {"a": _found("a", units)}, 0)
    first, second, third = (_keys(many.next(14)) for _ in range(3))
    assert second not in (first, third)


def test_the_order_given_is_the_order_of_the_source() -> None:
    source = _source({"a": 5}, order="given")
    assert _keys(source.next(10)) == [f"a{number}" for number in (0, 1, 2, 3, 4) * 2]


def test_no_two_units_of_a_batch_share_a_group() -> None:
    pair = (
        replace(example("good", group="p"), label=1.0),
        replace(example("bad", group="p"), label=-1.0),
    )
    spec = DataSpec(sources=(DataSource(path="a"),), validation=0.0)
    units = RecordedSource(spec, {"a": _found("a", [pair])}, 0).next(3)
    assert [[one.group for one in unit] for unit in units] == [
        ["p", "p"],
        ["p#2", "p#2"],
        ["p#3", "p#3"],
    ]


# --- the side held back --------------------------------------------------------------------


def test_a_unit_is_on_the_same_side_whatever_the_mix_and_the_seed() -> None:
    one = _source({"a": 400}, validation=0.2)
    other = _source({"b": 10, "a": 400}, {"a": 3.0}, seed=5, validation=0.2)
    held = set(_keys(one.validation))
    assert {key for key in _keys(other.validation) if key.startswith("a")} == held
    assert 50 < len(held) < 110
    assert held.isdisjoint(_keys(one.next(800)))
    assert one.status()["a"].validation == len(held)
    assert one.status()["a"].units == 400 - len(held)


def test_a_larger_share_holds_back_the_same_units_and_more() -> None:
    few, many = (set(_keys(_source({"a": 300}, validation=v).validation)) for v in (0.1, 0.4))
    assert few < many


def test_all_attempts_at_a_task_are_on_one_side_and_are_held_back_once() -> None:
    units: list[Unit] = [
        (example(f"{task}-{attempt}", group=f"{task}/{attempt}"),)
        for task in range(40)
        for attempt in range(4)
    ]
    spec = DataSpec(sources=(DataSource(path="a"), DataSource(path="b")), validation=0.3)
    found = {name: _found(name, units) for name in ("a", "b")}
    keys = _keys(RecordedSource(spec, found, 0).validation)
    tasks = Counter(key.partition("-")[0] for key in keys)
    assert set(tasks.values()) == {4}
    assert 3 < len(tasks) < 25


# --- nothing to train on -------------------------------------------------------------------


def test_a_source_with_nothing_to_train_on_is_no_signal_and_says_why() -> None:
    refusals = Refusals("a")
    refusals.refuse(Refused(reason="unknown role", file="a", number=0, detail="narrator"))
    spec = DataSpec(sources=(DataSource(path="a"),), validation=0.0)
    with pytest.raises(NoSignalError, match=r"nothing to train on: 1 x unknown role") as raised:
        RecordedSource(spec, {"a": SourceUnits(units=(), refusals=refusals)}, 0)
    assert raised.value.exit_code == 4
    heldout = spec.model_copy(update={"validation": 0.999})
    with pytest.raises(NoSignalError, match="held back"):
        RecordedSource(heldout, {"a": _found("a", _units("a", 2))}, 0)


def test_sources_that_the_recipe_does_not_name_are_refused() -> None:
    twice = DataSpec(sources=(DataSource(path="a"), DataSource(path="a")))
    for spec, found in ((twice, {"a": _found("a", _units("a", 3))}), (twice, {})):
        with pytest.raises(RecipeError, match="sources"):
            RecordedSource(spec, found, 0)
