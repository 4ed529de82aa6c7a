"""The cache: complete or not used, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.errors import StorageError
from headrace.policy.cache import (
    Filled,
    Manifest,
    Silent,
    cache_root,
    durable,
    install,
    read_manifest,
    require_space,
    storage_errors,
    verify,
    write_file,
)
from models_support import Recorder


def _fill(model: Path) -> Filled:
    write_file(model / "config.json", "{}")
    write_file(model / "weights.txt", "w" * 1000)
    return Filled(origin={"maker": "test"})


def _refuse(model: Path) -> Filled:
    raise AssertionError("built again")


def _install(slug: str = "m") -> Manifest:
    return install(slug, "test:m", _fill, progress=Silent())


def _leftovers(cache: Path) -> list[Path]:
    return list((cache / "models" / ".building").glob("*/work-*"))


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_root() == Path("/a")
    monkeypatch.delenv("HEADRACE_CACHE")
    assert cache_root() == Path("/b/headrace")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path("/c/.cache/headrace")


def test_an_entry_is_built_once_and_then_used(cache: Path) -> None:
    first = _install()
    again = install("m", "test:m", _refuse, progress=Silent())
    assert again == first
    assert first.directory == cache / "models" / "m"
    assert {record.name: record.size for record in first.files} == {
        "config.json": 2,
        "weights.txt": 1000,
    }
    assert verify(first, full=True) == []
    assert _leftovers(cache) == []


def test_digests_are_those_of_the_files_and_ignore_where_they_lie() -> None:
    first, second = _install("m"), _install("n")
    assert first.digest == second.digest
    # printf '{}' | sha256sum
    assert first.files[0].sha256 == (
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )
    assert first.directory != second.directory


@pytest.mark.parametrize(
    "damage", ["no manifest", "torn manifest", "other format", "file missing", "file cut"]
)
def test_an_entry_that_is_not_provably_complete_is_rebuilt(cache: Path, damage: str) -> None:
    _install()
    entry = cache / "models" / "m"
    manifest = entry / "manifest.json"
    match damage:
        case "no manifest":
            manifest.unlink()
        case "torn manifest":
            manifest.write_text(manifest.read_text()[:40])
        case "other format":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
        case "file missing":
            (entry / "weights.txt").unlink()
        case _:
            (entry / "weights.txt").write_text("w" * 999)
    rebuilt = _install()
    assert verify(rebuilt, full=True) == []
    assert read_manifest(entry) == rebuilt


def test_a_changed_byte_is_found_by_the_full_check_only(cache: Path) -> None:
    manifest = _install()
    (cache / "models" / "m" / "weights.txt").write_text("w" * 999 + "x")
    assert verify(manifest) == []
    progress = Recorder()
    assert verify(manifest, full=True, progress=progress) == [
        "weights.txt has changed (its SHA-256 differs)"
    ]
    assert progress.stages == [["checking digests", 1002, 1002]]


def test_an_interrupted_build_leaves_nothing(cache: Path) -> None:
    def interrupted(model: Path) -> Filled:
        write_file(model / "config.json", "{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install("m", "test:m", interrupted, progress=Silent())
    assert not (cache / "models" / "m").exists()
    assert _leftovers(cache) == []
    _install()


_CHILD = """
import os, signal, sys, time
from pathlib import Path
from headrace.policy.cache import Filled, Silent, install, write_file

def fill(model):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    write_file(model / "config.json", "{}")
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    return Filled(origin={})

print(install(sys.argv[3], "test:m", fill, progress=Silent()).digest)
"""


class _Child(NamedTuple):
    status: int
    output: str


def _children(count: int, *arguments: str) -> list[_Child]:
    command = [sys.executable, "-c", _CHILD, *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [child.communicate(timeout=60)[0] for child in running]
    return [_Child(c.returncode, out) for c, out in zip(running, outputs, strict=True)]


def test_a_build_killed_half_way_is_never_used_and_its_traces_are_swept(
    cache: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert _children(1, "die", str(log), "m") == [_Child(-signal.SIGKILL, "")]
    assert len(_leftovers(cache)) == 1
    assert not (cache / "models" / "m").exists()
    _install("another")
    assert _leftovers(cache) == []
    assert _children(1, "live", str(log), "m")[0].status == 0
    assert log.read_text() == "built\n" * 2


def test_of_two_processes_one_builds_and_both_get_the_model(tmp_path: Path) -> None:
    log = tmp_path / "log"
    one, two = _children(2, "live", str(log), "m")
    assert one.status == two.status == 0
    assert one.output == two.output != ""
    assert log.read_text() == "built\n"


def test_work_in_progress_elsewhere_is_not_swept(cache: Path) -> None:
    def slow(model: Path) -> Filled:
        write_file(model / "config.json", "{}")
        _install("another")
        assert model.is_dir()
        return Filled(origin={})

    install("m", "test:m", slow, progress=Silent())


def test_a_full_disk_is_named_with_the_space_there_is(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"No space left on device: .* bytes free") as caught,
        storage_errors(tmp_path),
    ):
        Path("/dev/full").write_text("x")
    assert "HEADRACE_CACHE" in caught.value.hint


def test_missing_space_is_refused_before_writing(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(
        StorageError, match=r"1,000,000,000,000,000,000 bytes needed, [0-9,]+ bytes"
    ):
        require_space(tmp_path, 10**18)


def test_a_disk_that_fills_up_during_a_build_leaves_nothing(cache: Path) -> None:
    def fill(model: Path) -> Filled:
        with durable(model / "weights.txt") as file:
            file.write(b"w")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError):
        install("m", "test:m", fill, progress=Silent())
    assert not (cache / "models" / "m").exists()
    assert _leftovers(cache) == []


def test_a_cache_that_cannot_be_written_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError) as caught:
        _install()
    assert "HEADRACE_CACHE" in caught.value.hint

    def denied(model: Path) -> Filled:
        raise PermissionError(errno.EACCES, "Permission denied", str(model))

    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "other"))
    with pytest.raises(StorageError, match="Permission denied"):
        install("m", "test:m", denied, progress=Silent())
