from __future__ import annotations

import json
import time
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.store.codec import trajectory_from_json, trajectory_to_json
from headrace.store.trajectories import WaveLog
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
from store_support import FULL, LAW, bits, small_trajectory, tiny_disk

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


def test_decoded_arrays_can_be_written_to() -> None:
    decoded = trajectory_from_json(trajectory_to_json(small_trajectory()))
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


# --- the log -------------------------------------------------------------------------------


def wave_of(number: int, count: int) -> list[Trajectory]:
    return [small_trajectory(100 * number + index) for index in range(count)]


def key_of(number: int) -> str:
    return f"{number:06d}:0"


def filled(directory: Path, counts: list[int], *, segment_bytes: int = 64 << 20) -> Path:
    with WaveLog(directory, segment_bytes=segment_bytes) as log:
        for number, count in enumerate(counts):
            log.append_wave(key_of(number), wave_of(number, count))
    return directory


def test_waves_come_back_exactly_by_key_and_in_order(tmp_path: Path) -> None:
    filled(tmp_path / "t", [2, 0, 3])
    for log in (WaveLog(tmp_path / "t"), WaveLog(tmp_path / "t", read_only=True)):
        assert log.keys() == [key_of(0), key_of(1), key_of(2)]
        assert (log.count(key_of(2)), key_of(1) in log, "other" in log) == (3, True, False)
        assert bits(log.wave(key_of(2))) == bits(wave_of(2, 3))
        assert log.wave(key_of(1)) == []
        assert log.wave("000009:0") is None
        waves = list(log.iterate())
        assert [wave.key for wave in waves] == log.keys()
        assert bits(waves[0].trajectories) == bits(wave_of(0, 2))
        assert [wave.key for wave in log.iterate([key_of(2)])] == [key_of(2)]
        with pytest.raises(KeyError):
            list(log.iterate(["000009:0"]))


def test_a_wave_is_written_once(tmp_path: Path) -> None:
    filled(tmp_path / "t", [1])
    with WaveLog(tmp_path / "t") as log, pytest.raises(ValueError, match="already in the log"):
        log.append_wave(key_of(0), wave_of(0, 1))


def test_segments_roll_and_a_wave_is_never_split(tmp_path: Path) -> None:
    filled(tmp_path / "t", [3, 1, 2, 1], segment_bytes=2000)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "part-00000.seg",
        "part-00001.seg",
        "part-00002.seg",
    ]
    log = WaveLog(tmp_path / "t", segment_bytes=2000)
    for number, count in enumerate([3, 1, 2, 1]):
        assert bits(log.wave(key_of(number))) == bits(wave_of(number, count))
    log.append_wave(key_of(4), wave_of(4, 1))
    assert bits(WaveLog(tmp_path / "t").wave(key_of(4))) == bits(wave_of(4, 1))


def test_a_log_cut_at_any_byte_keeps_exactly_its_committed_waves(tmp_path: Path) -> None:
    filled(tmp_path / "whole", [0, 1])
    data = (tmp_path / "whole" / "part-00000.seg").read_bytes()
    first = data.index(b'{"commit"') + len(b'{"commit":"000000:0","count":0}')
    directory = tmp_path / "t"
    directory.mkdir()
    path = directory / "part-00000.seg"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        committed = [key_of(0)] * (size >= first) + [key_of(1)] * (size == len(data))
        assert WaveLog(directory, read_only=True).keys() == committed
        assert path.stat().st_size == size, "a reader never cuts"
        if size % 37 == 0:
            with WaveLog(directory) as log:
                assert log.keys() == committed
                log.append_wave("next", wave_of(5, 1))
            found = WaveLog(directory, read_only=True)
            assert found.keys() == [*committed, "next"]
            assert bits(found.wave("next")) == bits(wave_of(5, 1))


def test_zeros_that_a_power_failure_left_at_the_end_are_cut(tmp_path: Path) -> None:
    path = filled(tmp_path / "t", [1, 1]) / "part-00000.seg"
    data = path.read_bytes()
    for tail in (bytes(3), bytes(8), bytes(5000), data[:300] + bytes(200)):
        path.write_bytes(data + tail)
        assert WaveLog(tmp_path / "t").keys() == [key_of(0), key_of(1)]
        assert path.read_bytes() == data


def test_every_flipped_bit_of_a_committed_wave_is_detected(tmp_path: Path) -> None:
    path = filled(tmp_path / "t", [1, 0]) / "part-00000.seg"
    data = path.read_bytes()
    for position in range(len(data)):
        for bit in range(8) if data[position] == 0 else [position % 8]:
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(StorageError, match=r"part-00000\.seg is corrupt at byte") as caught:
                WaveLog(tmp_path / "t", read_only=True)
            assert int(caught.value.where.rpartition(":")[2]) <= position


def test_damage_after_opening_is_detected_when_the_wave_is_read(tmp_path: Path) -> None:
    path = filled(tmp_path / "t", [1, 2]) / "part-00000.seg"
    log = WaveLog(tmp_path / "t", read_only=True)
    data = bytearray(path.read_bytes())
    data[-200] ^= 4
    path.write_bytes(data)
    assert bits(log.wave(key_of(0))) == bits(wave_of(0, 1))
    with pytest.raises(StorageError, match="corrupt at byte"):
        log.wave(key_of(1))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(StorageError, match="corrupt at byte"):
        log.wave(key_of(1))


def test_only_the_last_segment_may_have_a_torn_tail(tmp_path: Path) -> None:
    filled(tmp_path / "t", [3, 3], segment_bytes=2000)
    first = tmp_path / "t" / "part-00000.seg"
    whole = first.read_bytes()
    for damaged in (
        whole[:-1],
        whole + whole[:100],
        whole + whole[: whole.index(b'{"commit"') - 8],
    ):
        first.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"part-00000\.seg is corrupt"):
            WaveLog(tmp_path / "t")
        assert first.read_bytes() == damaged
    first.unlink()
    with pytest.raises(StorageError, match="segments are missing"):
        WaveLog(tmp_path / "t")


def test_a_reader_of_a_growing_log_sees_whole_waves_only(tmp_path: Path) -> None:
    log = WaveLog(tmp_path / "t")
    for number in range(5):
        log.append_wave(key_of(number), wave_of(number, 2))
        reader = WaveLog(tmp_path / "t", read_only=True)
        assert reader.keys() == [key_of(n) for n in range(number + 1)]
        with pytest.raises(StorageError, match="read-only"):
            reader.append_wave("x", [])
    assert WaveLog(tmp_path / "absent", read_only=True).keys() == []
    assert not (tmp_path / "absent").exists()


def test_a_full_disk_loses_no_committed_wave_and_keeps_no_half_one(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        log = WaveLog(disk / "t")
        acknowledged: list[str] = []
        with pytest.raises(StorageError, match=FULL):  # noqa: PT012
            for number in range(1000):
                log.append_wave(key_of(number), wave_of(number, 20))
                acknowledged.append(key_of(number))
        assert len(acknowledged) > 3
        with pytest.raises(StorageError, match="closed"):
            log.append_wave("x", [])
        found = WaveLog(disk / "t")
        assert found.keys() == acknowledged
        assert bits(found.wave(acknowledged[-1])) == bits(wave_of(len(acknowledged) - 1, 20))


def test_a_thousand_trajectories_are_on_disk_within_half_a_second(tmp_path: Path) -> None:
    wave = [small_trajectory(seed, tokens=40) for seed in range(1000)]
    started = time.process_time()
    with WaveLog(tmp_path / "t") as log:
        log.append_wave("000000:0", wave)
    assert time.process_time() - started < 0.5
