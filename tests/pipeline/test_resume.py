from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "resume.py"


def test_a_run_killed_anywhere_ends_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    """Two SIGKILLs, one while a checkpoint is being written; batches are one step ahead."""
    result = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARK), "--kills", "2", "--check", "--json", str(result)]
    command += ["--set", "play.max_lag=1", "--set", "steps=6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = json.loads(result.read_text())["kills"]
    assert len(kills) == 2
    assert any(kill["during"] != "already finished" for kill in kills)
    for kill in kills:
        assert kill["same"] == {
            "weights": True,
            "events": True,
            "trajectories": True,
            "evaluations": True,
        }
