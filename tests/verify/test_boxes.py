"""Borrowed sandboxes end with their process, quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.sandbox.oci.backend import OciBackend

pytestmark = pytest.mark.skipif(
    OciBackend().available() is not None, reason=f"oci: {OciBackend().available()}"
)

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from headrace.verify.boxes import PROGRAMS, shared

async def hello(box):
    return (await box.exec(["echo", "42"])).stdout.data

with ThreadPoolExecutor(3) as pool:
    said = list(pool.map(lambda _: shared().run(PROGRAMS, hello, timeout_s=30), range(6)))
print(set(said))
"""


def test_a_process_that_closes_nothing_leaves_no_sandbox_and_no_complaint(tmp_path: Path) -> None:
    state = tmp_path / "s"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, "HEADRACE_SANDBOX_STATE": str(state)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{b'42\\n'}\n", "")
    assert list((state / "oci").iterdir()) == []
