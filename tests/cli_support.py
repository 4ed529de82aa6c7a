"""Running the command line inside a test, and making a run directory without training."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.cli.main import main
from headrace.configure import load_recipe
from headrace.store import EventLog, RunDirectory

__all__ = ["Outcome", "headrace", "make_run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command wrote and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document; fails if there is anything else on it."""
        return json.loads(self.out)


def headrace(*arguments: str) -> Outcome:
    """Run `headrace ARGUMENTS` in this process, off a terminal."""
    out, err = io.StringIO(), io.StringIO()
    hook = sys.excepthook
    code: object = None
    try:
        with (
            patch.object(sys, "argv", ["headrace", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as ending:
        code = ending.code
    finally:
        sys.excepthook = hook
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def make_run(
    root: Path,
    *overrides: str,
    rewards: tuple[float, ...] = (0.2, 0.5, 0.9),
    heldout: tuple[float, float] = (0.3, 0.9),
    env: dict[str, Any] | None = None,
) -> RunDirectory:
    """A finished run of quickstart under `root`, as the pipeline would have recorded it."""
    recipe = load_recipe("quickstart", overrides).recipe
    run = RunDirectory.create(
        root,
        recipe.model_dump(mode="json"),
        recipe.name,
        recipe.digest,
        {"python": "3.11", "cores": 2} if env is None else env,
    )
    with run.lock(), EventLog(run.events_path) as events:
        run.new_attempt()
        events.append("run_started", 0, {"steps": len(rewards)})
        for step, score in ((0, heldout[0]), (len(rewards), heldout[1])):
            suite = {"suite": "heldout", "score": score, "stderr": 0.03, "n": 200}
            events.append("evaluation", step, suite)
        for step, mean in enumerate(rewards, start=1):
            domains = {"arithmetic": {"pass_rate": mean, "tier": 1, "share": 1.0}}
            payload = {"reward": {"mean": mean}, "domains": domains}
            timing = {"since_ready": 4.0 * step, "seconds": 4.0, "tokens_per_second": 100.0}
            events.append("step", step, payload, timing)
        value = {"value": 0.6, "stderr": 0.03, "low": 0.54, "high": 0.66, "n": 200}
        events.append("comparison", 3, {"suite": "heldout", **value, "confidence": 0.95})
        events.append("run_finished", 3, {"reason": "all steps done"}, {"training": 12.0})
        run.set_status("done", reason="all steps done")
    return run
