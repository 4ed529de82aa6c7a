"""What the tests of the trajectory store share: attempts by name, and logs of the first format."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.store.codec import trajectory_to_json
from headrace.store.trajectories import Admitted, TrajectoryStore
from headrace.types import Json, Task, Trajectory, Verdict, VerdictPart, VerifierRef
from store_support import small_trajectory

JUDGE = VerifierRef("final-integer", "1")
NEWER = VerifierRef("final-integer", "2")


def attempt(group: str, number: int = 0, *, seed: int | None = None, tokens: int = 3) -> Trajectory:
    """An attempt without a verdict; all of it follows from its name, or from a seed."""
    chosen = zlib.crc32(f"{group}/{number}".encode()) if seed is None else seed
    made = small_trajectory(chosen, tokens=tokens)
    return replace(made, group=group, attempt=number, verdict=None)


def verdict(
    score: float | None, verifier: VerifierRef = JUDGE, *, evidence: str = "seen"
) -> Verdict:
    return Verdict(
        score=score,
        verifier=verifier,
        parts=() if score is None else (VerdictPart("answer", score),),
        evidence=evidence,
        fault="infrastructure" if score is None else None,
    )


def admitted(group: str, *, size: int = 2, position: int = 0) -> Admitted:
    task: Task = attempt(group).task
    return Admitted(group=group, size=size, task=task, position=position, version=3)


def read(directory: Path) -> TrajectoryStore:
    return TrajectoryStore(directory, read_only=True)


def first_format_record(value: Json) -> bytes:
    payload = json.dumps(value, separators=(",", ":")).encode("ascii")
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def first_format(
    directory: Path, waves: Mapping[str, Sequence[Trajectory]], number: int = 0
) -> Path:
    """A segment as the first format had it: a wave's attempts, then its commit."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"part-{number:05d}.seg"
    records: list[bytes] = []
    for key, trajectories in waves.items():
        records += [first_format_record(trajectory_to_json(item)) for item in trajectories]
        records.append(first_format_record({"commit": key, "count": len(trajectories)}))
    path.write_bytes(b"".join(records))
    return path
