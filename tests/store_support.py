"""What the store's tests share: trajectories to store, and disks that are too small."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import settings

from headrace.types import (
    Json,
    Message,
    Support,
    Task,
    Trajectory,
    Turn,
    Verdict,
    VerdictPart,
    VerifierRef,
    VersionSpan,
)


def small_trajectory(seed: int = 0, *, tokens: int = 3) -> Trajectory:
    """A prompt turn and a sampled turn of `tokens` ids; all of it follows from the seed."""
    rng = np.random.default_rng(seed)
    verifier = VerifierRef("final-integer", "1")
    task = Task(
        domain="arithmetic",
        problem=f"2+{seed}",
        tier=0,
        split="train",
        messages=(Message.of("user", f"2 + {seed}?"),),
        verifier=verifier,
        answer=2 + seed,
    )
    prompt = Turn(
        role="user",
        text=f"2 + {seed}?",
        ids=rng.integers(0, 49152, 5, dtype=np.int32),
        sampled=np.zeros(5, np.bool_),
        logps=np.zeros(0, np.float32),
    )
    answer = Turn(
        role="assistant",
        text=str(2 + seed),
        ids=rng.integers(0, 49152, tokens, dtype=np.int32),
        sampled=np.ones(tokens, np.bool_),
        logps=-rng.random(tokens, dtype=np.float32),
        versions=(VersionSpan(seed, tokens),),
        support=Support(
            offsets=np.arange(tokens + 1, dtype=np.int64),
            ids=rng.integers(0, 49152, tokens, dtype=np.int32),
        ),
        stop_reason="stop",
    )
    return Trajectory(
        task=task,
        group=f"g{seed}",
        attempt=seed % 8,
        seed=seed,
        turns=(prompt, answer),
        ending="finished",
        verdict=Verdict(score=1.0, verifier=verifier, parts=(VerdictPart("format", 0.1),)),
        timings={"play": 0.1},
    )


def bits(value: object) -> Json:
    """Everything in a tree of dataclasses, arrays by dtype, shape and bytes: equal iff same."""
    if isinstance(value, np.ndarray):
        array: npt.NDArray[np.generic] = value
        return [array.dtype.str, list(array.shape), array.tobytes().hex()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return [type(value).__name__, {name: bits(getattr(value, name)) for name in fields}]
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(bits, value)]
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [type(value).__name__, repr(value)]


@contextmanager
def tiny_disk(path: Path, *, kilobytes: int = 256) -> Generator[Path]:
    """A directory that really runs full: a small tmpfs where one may be mounted.

    Elsewhere the size of any file is limited, which fails in the same place with another errno.
    """
    path.mkdir()
    options = f"size={kilobytes}k"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    may_mount = os.getuid() == 0 and shutil.which("mount") is not None
    if may_mount and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        try:
            yield path
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, hard))
    try:
        yield path
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


LAW = settings(deadline=None, derandomize=True, database=None, max_examples=60)
"""How laws are tested: the same examples everywhere, however slow the machine."""

FULL = "no space left|file size limit"
"""What a full disk is called in either case."""
