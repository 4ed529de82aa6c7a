from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InfrastructureError, StorageError
from headrace.store.events import Divergence, EventLog, read_events, read_history
from headrace.types import Json
from store_support import FULL, LAW, tiny_disk


def log_of(path: Path, count: int) -> EventLog:
    log = EventLog(path)
    for index in range(count):
        log.append("step", index, {"x": index}, {"seconds": 0.5})
    return log


def story(path: Path) -> list[tuple[int, str, Json]]:
    return [(event.seq, event.kind, event.payload) for event in read_events(path)]


def test_an_event_is_one_line_with_what_varies_under_time_and_timing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append("step", 3, {"loss": 0.1, "reward": {"mean": None}}, {"seconds": 2})
    (line,) = path.read_text().splitlines()
    value = json.loads(line)
    assert list(value) == ["seq", "kind", "step", "loss", "reward", "crc", "time", "timing"]
    assert value["timing"] == {"seconds": 2.0}
    assert value["time"].endswith("+00:00")
    (event,) = read_events(path)
    assert event.payload == {"loss": 0.1, "reward": {"mean": None}}
    assert (event.seq, event.kind, event.step, event.timing) == (0, "step", 3, {"seconds": 2.0})


def test_identical_runs_differ_only_under_time_and_timing(tmp_path: Path) -> None:
    lines: list[dict[str, Json]] = []
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        with EventLog(tmp_path / name) as log:
            log.append("step", 1, {"x": [1, "é"]}, {"seconds": seconds})
        line = json.loads((tmp_path / name).read_text())
        lines.append({key: line[key] for key in line if key not in ("time", "timing")})
    assert lines[0] == lines[1]


@LAW
@given(
    payloads=st.lists(
        st.dictionaries(
            st.text().filter(lambda k: k not in ("seq", "kind", "step", "crc", "time", "timing")),
            st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(codec=None))
            | st.lists(st.integers() | st.none(), max_size=3)
            | st.just({"crc": "x", "a": ',"crc":"'}),
            max_size=4,
        ),
        max_size=4,
    )
)
def test_whatever_is_appended_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, Json]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    with EventLog(path) as log:
        for payload in payloads:
            log.append("any", 0, payload, {"crc": 1.0})
    assert repr([event.payload for event in read_events(path)]) == repr(payloads)


def test_a_log_cut_at_any_byte_keeps_exactly_its_whole_lines(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    log_of(whole, 2).close()
    data = whole.read_bytes()
    path = tmp_path / "events.jsonl"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        lines = data[:size].count(b"\n")
        assert len(read_events(path)) == lines
        assert path.stat().st_size == size, "a reader never cuts"
        with EventLog(path) as log:
            assert log.seq == lines
            log.append("after", 9, {})
        assert [event.kind for event in read_events(path)] == ["step"] * lines + ["after"]


def test_a_last_line_with_pages_that_never_reached_the_disk_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log_of(path, 2).close()
    whole = path.read_bytes()
    for tail in (b"\0\0\0\0", b'{"seq":2,"kind"\0\0\0"timing":{}}\n'):
        path.write_bytes(whole + tail)
        assert EventLog(path).seq == 2
        assert path.read_bytes() == whole


def test_no_flipped_bit_passes_for_the_truth(tmp_path: Path) -> None:
    """It is detected, or it is in a value under `time` or `timing`."""
    whole = tmp_path / "whole"
    log_of(whole, 3).close()
    data, truth = whole.read_bytes(), story(whole)
    path = tmp_path / "events.jsonl"
    detected = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            assert story(path) == truth
        except StorageError:
            detected += 1
            continue
        start = data.rfind(b"\n", 0, position) + 1
        assert position > data.index(b',"time":', start), position
    assert detected > len(data) / 2


def test_a_corrupt_line_in_the_middle_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log_of(path, 3).close()
    lines = path.read_bytes().splitlines(keepends=True)
    for middle in (
        b"{garbage\n",
        b"\n",
        b"\0\n",
        b"[]\n",
        lines[0],
        lines[1].replace(b'"x":1', b'"x":7'),
    ):
        path.write_bytes(lines[0] + middle + lines[2])
        for read in (read_events, EventLog):
            with pytest.raises(StorageError, match=r"line 2 of events\.jsonl") as caught:
                read(path)
            assert caught.value.where == f"{path}:2"
        assert path.read_bytes() == lines[0] + middle + lines[2]


def test_a_missing_log_is_an_empty_history(tmp_path: Path) -> None:
    assert read_events(tmp_path / "events.jsonl") == []


def test_a_replay_that_agrees_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = log_of(path, 3)
    before = path.read_bytes()
    log.rewind(1)
    assert log.replaying
    log.append("step", 1, {"x": 1}, {"seconds": 99.0})
    log.append("step", 2, {"x": 2})
    assert path.read_bytes() == before
    assert (log.seq, log.replaying) == (3, False)
    log.append("step", 3, {"x": 3})
    assert [seq for seq, _, _ in story(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "payload", "named"),
    [
        ("step", {"x": {"mean": [1.0, 2.5]}}, r"x\.mean\[1\] was 2\.0 and is now 2\.5"),
        ("step", {"x": {"mean": [1.0, 2]}}, r"x\.mean\[1\] was 2\.0 and is now 2"),
        ("step", {}, r'x was \{"mean":\[1\.0,2\.0\]\} and is now "absent"'),
        ("wave", {"x": {"mean": [1.0, 2.0]}}, 'kind was "step" and is now "wave"'),
        ("step", {"x": {"mean": [1.0, 2.0]}, "y": 1}, 'y was "absent" and is now 1'),
    ],
)
def test_a_strict_replay_that_differs_names_event_and_key(
    tmp_path: Path, kind: str, payload: Json, named: str
) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append("step", 1, {"x": {"mean": [1.0, 2.0]}})
    before = path.read_bytes()
    log = EventLog(path, strict=True)
    log.rewind(0)
    with pytest.raises(Divergence, match=rf"at event 0 \({kind}, step 1\): {named}") as caught:
        log.append(kind, 1, payload)
    assert isinstance(caught.value, InfrastructureError)
    assert path.read_bytes() == before


def test_a_lenient_replay_that_differs_supersedes_the_abandoned_future(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = log_of(path, 4)
    log.rewind(1)
    log.append("step", 1, {"x": 1})
    log.append("step", 2, {"x": "other"})
    assert not log.replaying
    log.append("step", 3, {"x": 3})
    log.append("step", 4, {"x": 4})
    log.close()
    told = [(0, 0), (1, 1), (2, "other"), (3, 3), (4, 4)]
    assert [(seq, payload["x"]) for seq, _, payload in story(path)] == told
    history = read_history(path)
    (mark,) = history.rewinds
    assert (mark.kind, mark.step) == ("rewound", 2)
    assert mark.payload == {"to_seq": 2, "superseded": 2}
    assert path.read_bytes().count(b"\n") == 4 + 1 + 3, "what was recorded stays on the disk"


def test_a_rewound_log_replays_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = log_of(path, 3)
    log.rewind(1)
    log.append("step", 1, {"x": "other"})
    log.close()
    before = path.read_bytes()
    log = EventLog(path)
    assert log.seq == 2
    log.rewind(0)
    log.append("step", 0, {"x": 0})
    log.append("step", 1, {"x": "other"})
    assert path.read_bytes() == before
    log.rewind(0)
    log.append("step", 0, {"x": "again"})
    assert [payload["x"] for _, _, payload in story(path)] == ["again"]
    assert len(read_history(path).rewinds) == 2


def test_a_log_cut_between_a_rewind_and_its_event_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = log_of(path, 3)
    log.rewind(1)
    log.append("step", 1, {"x": "other"})
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    assert [seq for seq, _, _ in story(path)] == [0]
    log = EventLog(path)
    log.append("step", 1, {"x": "third"})
    assert [payload["x"] for _, _, payload in story(path)] == [0, "third"]


def test_a_checkpoint_ahead_of_the_log_is_an_error(tmp_path: Path) -> None:
    log = log_of(tmp_path / "events.jsonl", 2)
    with pytest.raises(StorageError, match="holds 2 events, but event 3 is needed"):
        log.rewind(3)


def test_what_json_cannot_hold_is_refused_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    with pytest.raises(ValueError, match=r"step\.loss is nan"):
        log.append("step", 0, {"loss": float("nan")})
    with pytest.raises(ValueError, match="seconds is inf"):
        log.append("step", 0, {}, {"seconds": float("inf")})
    with pytest.raises(TypeError, match=r"step\.loss is a ndarray"):
        log.append("step", 0, {"loss": np.zeros(3)})
    for reserved in ("seq", "kind", "step", "time", "timing", "crc"):
        with pytest.raises(ValueError, match=f"reserved by the log: {reserved}"):
            log.append("step", 0, {reserved: 1})
    with pytest.raises(ValueError, match="reserved by the log: rewound"):
        log.append("rewound", 0, {})
    assert path.read_bytes() == b""
    log.append("step", 0, {"loss": np.float32(0.5)})
    assert story(path) == [(0, "step", {"loss": 0.5})]


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        path = disk / "events.jsonl"
        log = EventLog(path)
        acknowledged = 0
        with pytest.raises(StorageError, match=FULL):  # noqa: PT012
            while True:
                log.append("step", acknowledged, {"pad": "x" * 20_000})
                acknowledged += 1
        assert acknowledged > 3
        assert len(read_events(path)) == acknowledged
        assert path.read_bytes().endswith(b"\n")
        with pytest.raises(StorageError, match="closed"):
            log.append("step", 0, {})
        assert EventLog(path).seq == acknowledged
