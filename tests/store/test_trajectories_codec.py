"""The encoding of trajectories: exact, and strict about what it reads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.store.codec import trajectory_from_json, trajectory_to_json
from headrace.store.records import encode, parse, trajectory_of
from headrace.types import (
    Failure,
    Fault,
    Floats,
    ImagePart,
    Json,
    Limits,
    Message,
    Role,
    SandboxNeed,
    Support,
    Task,
    TextPart,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
    Verdict,
    VerdictPart,
    VerifierRef,
    VersionSpan,
)
from store_support import LAW, bits, small_trajectory

texts = st.text(st.characters(codec=None), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, json_values, max_size=2)
roles: st.SearchStrategy[Role] = st.sampled_from(get_args(Role))
faults: st.SearchStrategy[Fault] = st.sampled_from(get_args(Fault))
refs = st.builds(VerifierRef, texts, texts)
int32s = st.integers(-(2**31), 2**31 - 1)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    sampled = np.array(draw(st.lists(st.booleans(), max_size=6)), np.bool_)
    count = int(sampled.sum())
    ids = np.array(draw(st.lists(int32s, min_size=len(sampled), max_size=len(sampled))), np.int32)
    raw = draw(st.binary(min_size=4 * count, max_size=4 * count))
    logps: Floats = np.frombuffer(raw, np.float32)
    support = None
    if draw(st.booleans()):
        widths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        support = Support(offsets, np.arange(offsets[-1], dtype=np.int32))
    calls = st.builds(ToolCall, texts, texts, texts, st.none() | objects, st.none() | texts)
    return Turn(
        role=draw(roles),
        text=draw(texts),
        ids=ids,
        sampled=sampled,
        logps=logps,
        versions=(VersionSpan(draw(st.integers()), count),),
        temperature=draw(finite),
        support=support,
        tool_calls=tuple(draw(st.lists(calls, max_size=2))),
        stop_reason=draw(st.sampled_from([None, "stop", "length"])),
    )


tasks = st.builds(
    Task,
    domain=texts,
    problem=texts,
    tier=st.integers(),
    split=st.sampled_from(["train", "heldout"]),
    messages=st.lists(
        st.builds(
            Message,
            roles,
            st.lists(
                st.builds(TextPart, texts) | st.builds(ImagePart, texts, texts), max_size=2
            ).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    verifier=refs,
    answer=json_values,
    tools=st.lists(st.builds(ToolSpec, texts, texts, objects), max_size=2).map(tuple),
    sandbox=st.none()
    | st.builds(SandboxNeed, st.sampled_from(["trusted", "process"]), st.none() | texts),
    limits=st.builds(Limits, st.none() | st.integers(), st.integers(), st.none() | finite),
    lineage=objects,
)
verdicts = st.builds(
    Verdict,
    score=st.none() | st.floats(0, 1),
    verifier=refs,
    parts=st.lists(st.builds(VerdictPart, texts, finite, finite), max_size=2).map(tuple),
    evidence=texts,
    fault=faults,
)
trajectories = st.builds(
    Trajectory,
    task=tasks,
    group=texts,
    attempt=st.integers(),
    seed=st.integers(),
    turns=st.lists(turns(), max_size=2).map(tuple),
    ending=st.sampled_from(["finished", "truncated", "budget", "failed"]),
    verdict=st.none() | verdicts,
    failure=st.none() | st.builds(Failure, texts, texts, faults),
    timings=st.dictionaries(texts, finite, max_size=2),
    snapshots=st.lists(texts, max_size=2).map(tuple),
    provenance=objects,
)


# --- the encoding --------------------------------------------------------------------------


@LAW
@given(trajectories)
def test_any_trajectory_comes_back_bit_for_bit(trajectory: Trajectory) -> None:
    text = json.dumps(trajectory_to_json(trajectory), allow_nan=False)
    assert bits(trajectory_from_json(json.loads(text))) == bits(trajectory)


@LAW
@given(trajectories)
def test_any_trajectory_comes_back_from_a_record_bit_for_bit(trajectory: Trajectory) -> None:
    assert bits(trajectory_of(parse(encode(trajectory)))) == bits(trajectory)


def test_decoded_arrays_can_be_written_to() -> None:
    inside = trajectory_from_json(trajectory_to_json(small_trajectory()))
    for decoded in (inside, trajectory_of(parse(encode(small_trajectory())))):
        assert all(turn.ids.flags.writeable for turn in decoded.turns)


def test_arrays_are_stored_as_little_endian_base64() -> None:
    turn = Turn(
        role="user",
        text="",
        ids=np.array([1, -2], np.int32),
        sampled=np.array([False, True]),
        logps=np.array([-0.5], np.float32),
        versions=(VersionSpan(7, 1),),
    )
    encoded = trajectory_to_json(
        Trajectory(
            task=small_trajectory().task,
            group="g",
            attempt=0,
            seed=0,
            turns=(turn,),
            ending="finished",
        )
    )
    assert encoded["format"] == 1
    stored = encoded["turns"][0]
    assert stored["ids"] == {"dtype": "<i4", "data": "AQAAAP7///8="}
    assert stored["sampled"] == {"dtype": "|b1", "data": "AAE="}
    assert stored["logps"] == {"dtype": "<f4", "data": "AAAAvw=="}
    assert stored["versions"] == [[7, 1]]


def test_arrays_of_another_dtype_are_refused() -> None:
    wide = np.array([1], np.int64)
    turn = Turn(
        role="user",
        text="",
        ids=wide,  # pyright: ignore[reportArgumentType]
        sampled=np.array([False]),
        logps=np.zeros(0, np.float32),
    )
    wrong = Trajectory(
        task=small_trajectory().task, group="g", attempt=0, seed=0, turns=(turn,), ending="finished"
    )
    with pytest.raises(TypeError, match="ids must be a one-dimensional int32 array"):
        trajectory_to_json(wrong)


def places(value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value."""
    if isinstance(value, dict):
        inner = [place for key, item in value.items() for place in places(item, (*path, key))]
    elif isinstance(value, list):
        inner = [place for i, item in enumerate(value) for place in places(item, (*path, i))]
    else:
        inner = []
    return [path, *inner]


def edited(value: Json, path: tuple[str | int, ...], new: Json) -> Json:
    """A copy of `value` with `new` at `path`."""
    copy = json.loads(json.dumps(value))
    if not path:
        return new
    target = copy
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = new
    return copy


FREE = ("answer", "lineage", "provenance", "parameters", "arguments")
"""Fields whose content is the task's or the policy's own JSON."""


def test_a_value_of_another_type_anywhere_is_an_error_and_never_a_guess() -> None:
    """No field holds a boolean, and none holds an object with an unknown key."""
    good = trajectory_to_json(small_trajectory())
    for path in places(good):
        if not set(FREE) & set(path):
            for wrong in (True, {"?": True}):
                bad = edited(good, path, wrong)
                with pytest.raises(StorageError, match="not a stored trajectory"):
                    pytest.fail(f"{path}: {trajectory_from_json(bad)}")


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("attempt",), 1.0),
        (("seed",), None),
        (("group",), 3),
        (("ending",), "gave up"),
        (("timings", "play"), "1"),
        (("snapshots",), [1]),
        (("task", "split"), "test"),
        (("task", "tier"), "0"),
        (("task", "limits", "seconds"), "1"),
        (("turns", 0, "role"), "root"),
        (("turns", 0, "temperature"), None),
        (("turns", 0, "stop_reason"), "eos"),
        (("turns", 0, "text"), None),
        (("verdict", "score"), 1.5),
        (("verdict", "score"), None),
        (("verdict", "fault"), "nobody"),
        (("failure",), []),
    ],
)
def test_values_out_of_range_are_errors(path: tuple[str | int, ...], wrong: Json) -> None:
    with pytest.raises(StorageError, match="not a stored trajectory"):
        trajectory_from_json(edited(trajectory_to_json(small_trajectory()), path, wrong))


def test_missing_and_unknown_fields_are_errors_that_name_them() -> None:
    good = trajectory_to_json(small_trajectory())
    removed = 0
    for path in places(good):
        parent: Json = good
        for step in path[:-1]:
            parent = parent[step]
        if isinstance(parent, dict) and path and not {*FREE, "timings"} & set(path[:-1]):
            lacking = {key: item for key, item in parent.items() if key != path[-1]}
            with pytest.raises(StorageError, match=r"\.\w+ is missing"):
                trajectory_from_json(edited(good, path[:-1], lacking))
            removed += 1
    assert removed > 60
    with pytest.raises(StorageError, match=r"trajectory\.group is missing"):
        trajectory_from_json({key: good[key] for key in good if key != "group"})
    with pytest.raises(StorageError, match="unknown fields: extra"):
        trajectory_from_json({**good, "extra": 1})
    with pytest.raises(StorageError, match="format is 2; this headrace reads 1"):
        trajectory_from_json({**good, "format": 2})


@pytest.mark.parametrize(
    ("field", "array"),
    [
        ("ids", {"dtype": "<i4", "data": "AQAA"}),
        ("ids", {"dtype": ">i4", "data": "AQAAAA=="}),
        ("ids", {"dtype": "<i4", "data": "not base64!"}),
        ("ids", {"dtype": "<i4", "data": "é"}),
        ("ids", {"dtype": "<i4", "data": ""}),
        ("sampled", {"dtype": "|b1", "data": "AgIC"}),
        ("logps", {"dtype": "<f4", "data": ""}),
        ("versions", [[0, -1]]),
        ("versions", [[0, 1, 2]]),
        ("support", {"offsets": {"dtype": "<i8", "data": ""}, "ids": {"dtype": "<i4", "data": ""}}),
    ],
)
def test_arrays_that_do_not_fit_are_errors(field: str, array: Json) -> None:
    good = trajectory_to_json(small_trajectory())
    with pytest.raises(StorageError, match="not a stored trajectory"):
        trajectory_from_json(edited(good, ("turns", 1, field), array))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([0, 0, 0, 0], "5 lengths"),
        ([8, 8, 3, 4, -1], "5 lengths"),
        ([8, 8, 3, 4, 4], "end before"),
        ([8, 8, 3, 4, 2], "left over"),
        ([8, 8, 2, 4, 4], "does not hold"),
        ([8.0, 8, 3, 4, 3], "not lengths"),
        ("8", "not lengths"),
    ],
)
def test_arrays_beside_a_record_must_fit_it(wrong: Json, why: str) -> None:
    parsed = parse(encode(small_trajectory()))
    assert parsed.header["arrays"] == [8, 8, 3, 4, 3]
    header = {**parsed.header, "arrays": wrong}
    with pytest.raises((StorageError, ValueError), match=why):
        trajectory_of(replace(parsed, header=header))


def test_mask_bytes_that_are_no_booleans_are_an_error() -> None:
    parsed = parse(encode(small_trajectory()))
    spoiled = bytearray(parsed.arrays)
    spoiled[4 * 8] = 2
    with pytest.raises(ValueError, match="no booleans"):
        trajectory_of(replace(parsed, arrays=bytes(spoiled)))
