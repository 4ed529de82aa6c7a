"""The state directory: private, this user's own, and not somewhere an attacker chose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import StorageError, UsageError
from headrace.sandbox.state import state_root


def test_named_directory_is_created_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "deep" / "state"))
    root = state_root()
    assert root == tmp_path / "deep" / "state"
    assert root.stat().st_mode & 0o777 == 0o700
    root.chmod(0o755)
    assert state_root().stat().st_mode & 0o777 == 0o700


def test_runtime_directory_is_used_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_SANDBOX_STATE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert state_root() == tmp_path / "headrace"


def test_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "link"))
    with pytest.raises(UsageError, match="symbolic link") as caught:
        state_root()
    assert "HEADRACE_SANDBOX_STATE" in caught.value.hint


def test_a_dangling_link_and_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "link"))
    with pytest.raises(UsageError, match="symbolic link"):
        state_root()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="not a directory"):
        state_root()


def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UsageError, match="belongs to user"):
        state_root()


def test_a_place_that_cannot_be_made_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_SANDBOX_STATE", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="cannot make"):
        state_root()
