"""Every test here has its own model cache, and no way out to the network."""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model cache root of this test (absent until something is pulled)."""
    torch.set_num_threads(1)
    root = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(root))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return root


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes for its only package index."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory
