from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.store.files import (
    append_fsync,
    jsonable,
    parse_json,
    read_json,
    storage_guard,
    write_atomic,
    write_json_atomic,
)
from headrace.types import Json
from store_support import FULL, LAW, tiny_disk

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_an_atomic_write_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_full_disk_keeps_the_old_file_and_says_what_to_free(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        (disk / "recipe.json").write_text("{}")
        path = disk / "status.json"
        write_atomic(path, b"old")
        with pytest.raises(StorageError, match=FULL) as caught:
            write_atomic(path, bytes(400_000))
        assert path.read_bytes() == b"old"
        assert sorted(entry.name for entry in disk.iterdir()) == ["recipe.json", "status.json"]
    assert caught.value.where == str(path)
    assert caught.value.hint.endswith(f"then: headrace resume {disk}")


@pytest.mark.parametrize(
    ("number", "reason", "hint"),
    [
        (errno.ENOSPC, "no space left on device", "free at least 1,000 bytes"),
        (errno.EDQUOT, "disk quota exceeded", "free at least 1,000 bytes"),
        (errno.EIO, "input/output error", "check the disk"),
        (errno.EACCES, "permission denied", "writable"),
        (errno.EROFS, "read-only", "writable"),
        (errno.ENOTDIR, "Not a directory", "check the disk"),
    ],
)
def test_every_failing_write_says_what_where_and_what_next(
    tmp_path: Path, number: int, reason: str, hint: str
) -> None:
    path = tmp_path / "file"
    with pytest.raises(StorageError) as caught, storage_guard(path, needed=1000):
        raise OSError(number, os.strerror(number))
    assert f"cannot write {path}: " in caught.value.what
    assert reason in caught.value.what
    assert hint in caught.value.hint
    assert "run the same command again" in caught.value.hint
    assert caught.value.exit_code == 5


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        path = disk / "log"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        append_fsync(descriptor, path, b"kept\n")
        with pytest.raises(StorageError, match=FULL):
            append_fsync(descriptor, path, bytes(400_000))
        assert path.read_bytes() == b"kept\n"
        append_fsync(descriptor, path, b"and on\n")
        assert path.read_bytes() == b"kept\nand on\n"
        os.close(descriptor)


@LAW
@given(json_values)
def test_plain_json_passes_through_unchanged(value: Json) -> None:
    assert json.loads(json.dumps(jsonable(value, "value"))) == value
    assert repr(jsonable(value, "value")) == repr(value)


def test_tuples_become_lists_and_numpy_scalars_become_python_numbers() -> None:
    value = {"a": (1, np.float32(0.5)), "b": np.int64(3), "c": np.bool_(True)}
    assert repr(jsonable(value, "x")) == "{'a': [1, 0.5], 'b': 3, 'c': True}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_numbers_that_are_not_finite_are_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match=r"step\.reward\[1\] is -?(nan|inf)"):
        jsonable({"reward": [0, value]}, "step")


@pytest.mark.parametrize("value", [np.zeros(2), {1, 2}, b"x", {1: 2}, object()])
def test_what_json_cannot_hold_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"step\.reward"):
        jsonable({"reward": value}, "step")


@pytest.mark.parametrize("text", ["NaN", "[1e400, Infinity]", "{", "[" * 100_000, "1" * 5000])
def test_what_is_not_strict_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text.encode())


def test_json_files_round_trip_and_damaged_ones_name_themselves(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    write_json_atomic(path, {"name": "ö\ud800", "n": 1})
    assert read_json(path) == {"name": "ö\ud800", "n": 1}
    path.write_bytes(b'{"name": \xff')
    with pytest.raises(StorageError, match=r"env\.json is not valid JSON"):
        read_json(path)
    with pytest.raises(StorageError, match="cannot read"):
        read_json(tmp_path / "absent.json")
