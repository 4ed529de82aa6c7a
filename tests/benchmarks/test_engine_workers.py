from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_cases import Crew
from engine_workers import Unavailable, Worker, script
from engine_workload import Workload

from headrace.policy.pull import pull

ECHO = f"""
import sys, time
sys.path.insert(0, {str(Path(script("wire.py")).parent)!r})
from wire import Wire
wire = Wire()
print("noise on stdout")
wire.reply(ready=True, pid=__import__("os").getpid())
for request in wire.requests():
    if request["do"] == "die":
        raise RuntimeError("this processor cannot do it")
    if request["do"] == "hang":
        time.sleep(60)
    wire.reply(echo=request["do"])
"""


def worker(name: str = "echo") -> Worker:
    return Worker(name, [sys.executable, "-c", ECHO], {}, threads=1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_answers_requests_and_its_noise_is_no_answer() -> None:
    with worker() as echo:
        assert echo.hello(deadline=20)["ready"]
        assert echo.ask(deadline=20, do="a") == {"echo": "a"}
        assert echo.ask(deadline=20, do="b") == {"echo": "b"}


def test_a_worker_is_gone_when_its_block_is_left() -> None:
    with worker() as echo:
        pid = int(echo.hello(deadline=20)["pid"])
        assert alive(pid)
    assert not alive(pid)


def test_a_dying_worker_is_unavailable_for_its_own_reason() -> None:
    with worker("peer") as echo:
        echo.hello(deadline=20)
        with pytest.raises(Unavailable, match=r"peer died: RuntimeError: this processor cannot"):
            echo.ask(deadline=20, do="die")


def test_a_hanging_worker_is_unavailable_at_its_deadline_and_killed() -> None:
    with worker("peer") as echo:
        pid = int(echo.hello(deadline=20)["pid"])
        started = time.perf_counter()
        with pytest.raises(Unavailable, match=r"peer waited 1 s for hang in vain"):
            echo.ask(deadline=1, do="hang")
        assert time.perf_counter() - started < 10
        assert not alive(pid)


def test_a_race_alternates_who_is_first_and_keeps_no_warm_up() -> None:
    with worker() as one, worker() as two:
        crew = Crew(workers={"one": one, "two": two})
        order: list[str] = []

        def measure(side: str, number: int) -> float:
            order.append(side)
            return float(number)

        values = crew.race("race", 2, measure)
    assert order == ["one", "two", "two", "one", "one", "two"]
    assert values == {"one": (1.0, 2.0), "two": (1.0, 2.0)}


def test_a_peer_that_dies_in_a_race_leaves_a_row_that_fails_with_its_reason() -> None:
    with worker() as one, worker() as two:
        for each in (one, two):
            each.hello(deadline=20)
        crew = Crew(workers={"headrace": one, "peer": two})

        def measure(side: str, number: int) -> float:
            crew.ask(side, do="die" if side == "peer" and number == 1 else "go")
            return 1.0

        values = crew.race("race", 3, measure)
        [row] = crew.rows("w", "u", values, {"peer": None})
    assert len(row.ours) == 3
    assert row.passed is False
    assert row.unavailable is not None
    assert "this processor cannot do it" in row.unavailable


def test_a_workload_is_the_same_everywhere_and_of_the_promised_lengths() -> None:
    directory = pull("tiny:llama").directory
    one, other = Workload(directory), Workload(directory)
    assert one.prompts(20, first=7) == other.prompts(20, first=7)
    assert len({tuple(ids) for ids in one.prompts(64, first=0)}) == 64
    texts = one.texts(20_000, first=0)
    assert texts == other.texts(20_000, first=0)
    lengths = sorted(map(len, texts))
    assert sum(lengths) == 20_000
    assert lengths[0] >= 20
    assert lengths[-1] <= 520
    assert 80 < lengths[len(lengths) // 2] < 150


def test_the_whole_benchmark_runs_on_a_tiny_model(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    options = "--model tiny:llama --quick --rounds 1 --dtypes fp32 --batches 2 --threads 1"
    engine = Path(script("x")).parents[1] / "engine.py"
    done = subprocess.run(
        [
            *(sys.executable, str(engine), *options.split()),
            *("--only", "roofline,parity", "--json", str(output)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row for row in json.loads(output.read_text())["rows"]}
    assert rows["sampler against learner, fp32"]["passed"]
    assert 0 < rows["roofline decode fp32 batch 2"]["ratio"] < 1
    assert 0 < rows["roofline training fp32"]["ratio"] < 1
    assert rows["machine: bandwidth"]["value"] > 0
