from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.errors import CheckpointError, StorageError
from headrace.store.checkpoints import Checkpoints
from store_support import FULL, tiny_disk


def weights(step: int) -> bytes:
    return bytes([step % 251]) * 1000


def fill_of(step: int) -> Callable[[Path], None]:
    def fill(directory: Path) -> None:
        (directory / "model.bin").write_bytes(weights(step))
        (directory / "optimizer").mkdir()
        (directory / "optimizer" / "moments.bin").write_bytes(weights(step) * 2)

    return fill


def name_of(step: int) -> str:
    return f"step_{step:06d}"


def written(directory: Path, steps: list[int], keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        checkpoints.write(name_of(step), fill_of(step), {"step": step})
    return checkpoints


def everything(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_checkpoint_comes_back_with_its_files_and_state(tmp_path: Path) -> None:
    checkpoints = written(tmp_path / "c", [9, 10])
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.name, latest.step, latest.problems) == ("step_000010", 10, ())
    assert latest.state == {"step": 10}
    assert (latest.path / "model.bin").read_bytes() == weights(10)
    assert (latest.path / "optimizer" / "moments.bin").read_bytes() == weights(10) * 2


def test_the_manifest_names_every_file_with_size_and_sha256(tmp_path: Path) -> None:
    written(tmp_path / "c", [1])
    manifest = json.loads((tmp_path / "c" / "step_000001" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["model.bin", "optimizer/moments.bin", "state.json"]
    assert manifest["files"]["model.bin"] == {
        # printf '\001%.0s' $(seq 1000) | sha256sum
        "sha256": "353c38352a855c80f4ecb0793a76493228541b5fab5ef7af26effac91e77ec46",
        "size": 1000,
    }


def test_only_the_newest_are_kept_and_steps_sort_as_numbers(tmp_path: Path) -> None:
    checkpoints = written(tmp_path / "c", [1, 2, 999_999, 1_000_000], keep=2)
    assert checkpoints.names() == ["step_999999", "step_1000000"]
    assert everything(tmp_path / "c") == ["step_1000000", "step_999999"]
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 1_000_000


def test_none_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "c").latest() is None
    assert Checkpoints(tmp_path / "absent", read_only=True).latest() is None
    assert not (tmp_path / "absent").exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("flipped bit", lambda d: flip(d / "model.bin"), r"model\.bin does not match its SHA-256"),
    ("flipped deep", lambda d: flip(d / "optimizer" / "moments.bin"), "moments.bin does not match"),
    ("shorter", lambda d: (d / "model.bin").write_bytes(b"x"), "has 1 bytes instead of 1,000"),
    ("missing file", lambda d: (d / "model.bin").unlink(), r"model\.bin is missing"),
    ("no manifest", lambda d: (d / "manifest.json").unlink(), r"manifest\.json is missing"),
    ("torn manifest", lambda d: (d / "manifest.json").write_text('{"fo'), "not valid JSON"),
    ("odd manifest", lambda d: (d / "manifest.json").write_text("[]"), "is not a manifest"),
    (
        "other format",
        lambda d: (d / "manifest.json").write_text('{"format": 9, "files": {"state.json": 0}}'),
        "format 9; this headrace reads 1",
    ),
    (
        "outside",
        lambda d: (d / "manifest.json").write_text(
            '{"format": 1, "files": {"state.json": {"sha256": "", "size": 0}, '
            '"../../x": {"sha256": "", "size": 0}}}'
        ),
        r"is wrong about \.\./\.\./x",
    ),
    ("state", lambda d: (d / "state.json").write_text('{"step": 9}'), "state.json has 11 bytes"),
]


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_a_damaged_checkpoint_is_passed_over_with_its_reason_and_alone_is_an_error(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    checkpoints = written(tmp_path / "c", [1, 2])
    damage(tmp_path / "c" / "step_000002")
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 1
    assert len(latest.problems) == 1
    assert latest.problems[0].startswith("step_000002: ")
    damage(tmp_path / "c" / "step_000001")
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoints.latest()
    assert caught.value.exit_code == 5
    assert str(tmp_path / "c") in caught.value.hint


def test_every_flipped_bit_of_the_manifest_is_detected_or_harmless(tmp_path: Path) -> None:
    checkpoints = written(tmp_path / "c", [1])
    path = tmp_path / "c" / "step_000001" / "manifest.json"
    data = path.read_bytes()
    harmless = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            latest = checkpoints.latest()
        except CheckpointError:
            continue
        assert latest is not None
        assert latest.state == {"step": 1}
        harmless += 1
        assert chr(data[position]).isspace(), position
    assert harmless < 40


def test_a_checkpoint_written_again_replaces_a_damaged_one_and_its_future(tmp_path: Path) -> None:
    checkpoints = written(tmp_path / "c", [1, 2, 3], keep=1 + 2)
    for step in (2, 3):
        flip(tmp_path / "c" / name_of(step) / "model.bin")
    checkpoints = Checkpoints(tmp_path / "c", keep=1)
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.step, len(latest.problems)) == (1, 2)
    checkpoints.write(name_of(2), fill_of(2), {"step": 2})
    assert everything(tmp_path / "c") == ["step_000002"]
    latest = checkpoints.latest()
    assert latest is not None
    assert (latest.step, latest.problems) == (2, ())


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    written(tmp_path / "c", [1])
    (tmp_path / "c" / ".tmp-step_000002-77").mkdir()
    (tmp_path / "c" / ".tmp-step_000002-77" / "model.bin").write_bytes(b"half")
    reader = Checkpoints(tmp_path / "c", read_only=True)
    assert reader.names() == ["step_000001"]
    assert len(everything(tmp_path / "c")) == 2
    Checkpoints(tmp_path / "c")
    assert everything(tmp_path / "c") == ["step_000001"]


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    written(tmp_path / "c", [1])
    (tmp_path / "c" / "step_000001").rename(tmp_path / "c" / ".replaced-step_000001")
    latest = Checkpoints(tmp_path / "c").latest()
    assert latest is not None
    assert latest.step == 1
    written(tmp_path / "d", [1])
    (tmp_path / "d" / "step_000001").rename(tmp_path / "c" / ".replaced-step_000001")
    Checkpoints(tmp_path / "c")
    assert everything(tmp_path / "c") == ["step_000001"]


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (OSError(errno.ENOSPC, "full"), StorageError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("bug"), RuntimeError),
    ],
)
def test_a_failure_while_writing_leaves_nothing_and_the_older_ones_intact(
    tmp_path: Path, error: BaseException, becomes: type[BaseException]
) -> None:
    checkpoints = written(tmp_path / "c", [1], keep=1)

    def fill(directory: Path) -> None:
        (directory / "model.bin").write_bytes(b"half")
        raise error

    with pytest.raises(becomes):
        checkpoints.write(name_of(2), fill, {})
    assert everything(tmp_path / "c") == ["step_000001"]
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 1


def test_a_full_disk_says_what_to_free_and_keeps_the_older_ones(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        (disk / "recipe.json").write_text("{}")
        checkpoints = written(disk / "checkpoints", [1, 2])
        size = sum(
            path.stat().st_size
            for path in (disk / "checkpoints" / "step_000002").rglob("*")
            if path.is_file()
        )

        def fill(directory: Path) -> None:
            (directory / "model.bin").write_bytes(bytes(400_000))

        with pytest.raises(StorageError, match=FULL) as caught:
            checkpoints.write(name_of(3), fill, {})
        assert f"headrace resume {disk}" in caught.value.hint
        assert "file size" in caught.value.what or f"{size:,} bytes" in caught.value.hint
        assert everything(disk / "checkpoints") == ["step_000001", "step_000002"]
        latest = checkpoints.latest()
        assert latest is not None
        assert latest.step == 2
        checkpoints.write(name_of(3), fill_of(3), {})


def test_a_disk_that_safetensors_finds_full_is_a_storage_error_too(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        save_file({"weight": np.zeros(100_000, np.float32)}, directory / "model.safetensors")

    with tiny_disk(tmp_path / "disk") as disk:
        checkpoints = written(disk / "checkpoints", [1])
        with pytest.raises(StorageError, match=FULL):
            checkpoints.write(name_of(2), fill, {})
        assert everything(disk / "checkpoints") == ["step_000001"]


def test_only_regular_files_and_sane_names_are_accepted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    with pytest.raises(ValueError, match="regular files only, not link"):
        checkpoints.write(name_of(1), lambda d: (d / "link").symlink_to("/etc/passwd"), {})
    with pytest.raises(ValueError, match="step_NNNNNN"):
        checkpoints.write("../step_000001", fill_of(1), {})
    with pytest.raises(ValueError, match="at least one"):
        Checkpoints(tmp_path / "c", keep=0)
    assert everything(tmp_path / "c") == []
