"""Verdicts by processes of their own, real ones, one of which dies of what it judges."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.pipeline.clock import SystemClock
from headrace.pipeline.judging import attempt_of, processes
from headrace.recipe import VerifySpec
from headrace.types import Verdict
from pipeline_support import TRYING, events, run, trying


def test_a_process_that_dies_of_a_verdict_is_replaced_and_costs_no_other(
    tmp_path: Path,
) -> None:
    task = trying.open("trying/deadly").task(0, 1)

    async def story() -> list[Verdict | None]:
        spec = VerifySpec(workers=2, deadline=30)
        async with processes(spec, packs=TRYING, clock=SystemClock(), logs=tmp_path) as judges:
            texts = ["aaaa", "die", "bbbb"]
            told = await asyncio.gather(*(judges.judge(attempt_of(task, t)) for t in texts))
            again = await judges.judge(attempt_of(task, "abab"))
            return [t.verdict for t in [*told, again]]

    first, died, second, again = asyncio.run(asyncio.wait_for(story(), 60))
    assert first is not None
    assert first.score == 1.0
    assert second is not None
    assert second.score == 0.0
    assert died is not None
    assert (died.score, died.fault) == (None, "infrastructure")
    assert again is not None
    assert again.score == 0.5


def test_a_run_whose_verdicts_come_from_processes_learns_the_same(tmp_path: Path) -> None:
    for name, placement in (("threads", "threads"), ("processes", "processes")):
        (tmp_path / name).mkdir()
        run(tmp_path / name, verify={"audit": "off", "placement": placement, "workers": 2})
    told = [
        [event.payload["reward"] for event in events(tmp_path / name, "step")]
        for name in ("threads", "processes")
    ]
    assert told[0] == told[1]
