"""The verification pool: order, deadlines, what hangs, what is kept, and whose fault it is."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import StorageError, UsageError, VerifierError
from headrace.types import (
    Json,
    SandboxNeed,
    Task,
    Trajectory,
    Turn,
    Verdict,
    VerdictPart,
    VerifierRef,
)
from headrace.verify import pool as pool_module
from headrace.verify.cache import DiskCache, MemoryCache, verdict_key
from headrace.verify.pool import VerificationPool
from headrace.verify.verdicts import scored, unjudged
from judge_support import judged_task

REF = VerifierRef("scripted", "1")


class Scripted:
    """Judges by `say`, and counts the texts it was asked about."""

    def __init__(self, say: Callable[[Task, str], float | Verdict], ref: VerifierRef = REF) -> None:
        self.ref = ref
        self.asked: Counter[str] = Counter()
        self._say = say
        self._lock = threading.Lock()

    def judge(self, task: Task, text: str) -> Verdict:
        with self._lock:
            self.asked[text] += 1
        said = self._say(task, text)
        if isinstance(said, Verdict):
            return said
        return scored(self.ref, (VerdictPart("answer", said),), evidence=text)


def attempt(text: str, task: Task | None = None, number: int = 0) -> Trajectory:
    nothing = np.zeros(0, np.float32)
    turn = Turn(
        role="assistant",
        text=text,
        ids=np.zeros(0, np.int32),
        sampled=np.zeros(0, np.bool_),
        logps=nothing,
    )
    return Trajectory(
        task=task or judged_task(None),
        group="g",
        attempt=number,
        seed=0,
        turns=(turn,),
        ending="finished",
    )


def length(task: Task, text: str) -> float:
    return min(1.0, len(text) / 10)


def judged_by(verifier: Scripted, texts: list[str], **options: float) -> list[Trajectory]:
    with VerificationPool(
        {"judged": verifier},
        workers=int(options.get("workers", 4)),
        deadline_s=options.get("deadline_s", 30.0),
    ) as pool:
        return pool.judge([attempt(text) for text in texts])


@pytest.fixture
def gate() -> Generator[threading.Event]:
    """What hangs until a test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_verdicts_come_in_order_whoever_is_first() -> None:
    def late_first(task: Task, text: str) -> float:
        time.sleep(0.05 if text == "a" else 0.0)
        return length(task, text)

    texts = ["a", "bb", "ccc", "dddd"]
    judged = judged_by(Scripted(late_first), texts)
    assert [t.completion for t in judged] == texts
    assert [t.score for t in judged] == [0.1, 0.2, 0.3, 0.4]


def test_progress_is_told_from_the_callers_thread() -> None:
    told: list[tuple[int, int]] = []
    here = threading.get_ident()

    def hear(done: int, total: int) -> None:
        assert threading.get_ident() == here
        told.append((done, total))

    with VerificationPool({"judged": Scripted(length)}, workers=2) as pool:
        pool.judge([attempt(str(n % 5)) for n in range(10)], hear)
        assert pool.judge([], hear) == []
    assert told[-2:] == [(10, 10), (0, 0)]
    assert [done for done, _ in told[:-1]] == sorted({done for done, _ in told[:-1]})


def test_several_verdicts_are_made_at_once() -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(task: Task, text: str) -> float:
        together.wait()
        return 1.0

    assert [t.score for t in judged_by(Scripted(meet), ["a", "b", "c"], workers=3)] == [1.0] * 3


# --- deadlines ---------------------------------------------------------------------------------


def test_a_deadline_does_not_count_waiting_for_a_turn() -> None:
    """verifiers #831: the timeout ran while the verdict waited in the queue."""

    def slow(task: Task, text: str) -> float:
        time.sleep(0.1)
        return 1.0

    texts = [str(n) for n in range(8)]
    judged = judged_by(Scripted(slow), texts, workers=1, deadline_s=0.4)
    assert [t.score for t in judged] == [1.0] * 8


def test_what_hangs_costs_its_own_verdict_only(gate: threading.Event) -> None:
    """NeMo Gym #1354, AReaL #1426: one hang stopped everything."""

    def hang(task: Task, text: str) -> float:
        if text.startswith("hang"):
            gate.wait()
        return length(task, text)

    heard: list[str] = []
    texts = ["hang 1", "a", "hang 2", "bb", "hang 3", "ccc", "dddd"]
    with VerificationPool(
        {"judged": Scripted(hang)}, workers=2, deadline_s=0.2, warn=heard.append
    ) as pool:
        started = time.monotonic()
        judged = pool.judge([attempt(text) for text in texts])
        assert time.monotonic() - started < 5.0
        assert [t.score for t in judged] == [None, 0.1, None, 0.2, None, 0.3, 0.4]
        verdict = judged[0].verdict
        assert verdict is not None
        assert verdict.fault == "verifier"
        assert "no verdict within 0.2 s" in verdict.evidence
        assert "scripted" in verdict.evidence
        assert len(heard) == 3
        assert all("scripted" in line for line in heard)
        assert pool.stats().stalled == {"scripted": 3}
        assert [t.score for t in pool.judge([attempt("eeeee")])] == [0.5]


def test_what_comes_after_its_deadline_is_not_used(gate: threading.Event) -> None:
    finished = threading.Event()

    def late(task: Task, text: str) -> float:
        if verifier.asked[text] == 1:
            gate.wait()
            finished.set()
        return 1.0

    verifier = Scripted(late)
    with VerificationPool({"judged": verifier}, workers=1, deadline_s=0.1) as pool:
        assert pool.judge([attempt("a")])[0].score is None
        gate.set()
        assert finished.wait(5)
        assert pool.judge([attempt("a")])[0].score == 1.0
    assert verifier.asked["a"] == 2


def test_where_nothing_can_be_expected_any_more_the_verifier_is_named(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_MOST_STUCK", 3)

    def hang(task: Task, text: str) -> float:
        gate.wait()
        return 1.0

    with pytest.raises(VerifierError, match="3 verdicts hang, most of the verifier scripted"):
        judged_by(Scripted(hang), [str(n) for n in range(9)], workers=1, deadline_s=0.05)


# --- errors ------------------------------------------------------------------------------------


def test_a_programming_error_is_raised_once_the_others_have_ended() -> None:
    def broken(task: Task, text: str) -> float:
        if text.startswith("bad"):
            raise KeyError(text)
        time.sleep(0.02)
        return 1.0

    verifier = Scripted(broken)
    texts = ["a", "bad 1", "b", "bad 2", "c", "d"]
    with VerificationPool({"judged": verifier}, workers=2) as pool:
        with pytest.raises(KeyError, match="bad 1") as caught:
            pool.judge([attempt(text) for text in texts])
        assert "1 more" in "".join(caught.value.__notes__)
        assert set(verifier.asked) == set(texts)
        assert pool.judge([attempt("e")])[0].score == 1.0


def test_leaving_in_the_middle_leaves_no_work_behind() -> None:
    verifier = Scripted(lambda task, text: time.sleep(0.02) or 1.0)

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with VerificationPool({"judged": verifier}, workers=1) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.judge([attempt(str(n)) for n in range(50)], stop)
        assert pool.judge([attempt("last")])[0].score == 1.0
    assert len(verifier.asked) < 10


def test_an_unknown_domain_is_an_error_at_once() -> None:
    with (
        VerificationPool({"other": Scripted(length)}) as pool,
        pytest.raises(KeyError, match="judged"),
    ):
        pool.judge([attempt("a")])
    with pytest.raises(UsageError):
        VerificationPool({}, workers=0)


# --- who is at fault ---------------------------------------------------------------------------


def test_infrastructure_is_tried_once_more_and_never_a_zero() -> None:
    """open-instruct #1887: 5 to 15 % of the rewards were zeros of broken machines."""

    def flaky(task: Task, text: str) -> float | Verdict:
        if text == "always" or (text == "once" and verifier.asked[text] == 1):
            return unjudged(REF, "infrastructure", "no sandbox")
        return unjudged(REF, "verifier", "no idea") if text == "never" else 1.0

    verifier = Scripted(flaky)
    with VerificationPool({"judged": verifier}) as pool:
        attempts = [attempt(text) for text in ("always", "once", "fine", "never")]
        judged = pool.judge(attempts)
        assert [t.score for t in judged] == [None, 1.0, 1.0, None]
        assert verifier.asked == {"always": 2, "once": 2, "fine": 1, "never": 1}
        stats = pool.stats()
        assert (stats.judged, stats.cached, stats.retried) == (4, 0, 2)
        assert stats.unjudged == {"infrastructure": 1, "verifier": 1}
        pool.judge(attempts)
        assert verifier.asked == {"always": 4, "once": 2, "fine": 1, "never": 2}


def test_each_try_has_its_own_deadline() -> None:
    def slow(task: Task, text: str) -> float | Verdict:
        time.sleep(0.25)
        return unjudged(REF, "infrastructure", "gone") if verifier.asked[text] == 1 else 1.0

    verifier = Scripted(slow)
    assert judged_by(verifier, ["a"], deadline_s=0.4)[0].score == 1.0


# --- caching -----------------------------------------------------------------------------------


def test_nothing_is_judged_twice() -> None:
    verifier = Scripted(length)
    with VerificationPool({"judged": verifier}) as pool:
        first = pool.judge([attempt(text, number=n) for n, text in enumerate("abab")])
        again = pool.judge([attempt(text) for text in "abc"])
        assert verifier.asked == {"a": 1, "b": 1, "c": 1}
        assert (pool.stats().judged, pool.stats().cached) == (3, 4)
    assert first[0].verdict == first[2].verdict == again[0].verdict
    assert [t.attempt for t in first] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "changed",
    [
        lambda t: replace(t, answer=8),
        lambda t: replace(t, domain="elsewhere"),
        lambda t: replace(t, problem="another"),
        lambda t: replace(t, messages=(*t.messages, *t.messages)),
        lambda t: replace(t, sandbox=SandboxNeed("process")),
        lambda t: replace(t, sandbox=SandboxNeed("process", memory_mb=64)),
    ],
)
def test_no_two_tasks_share_a_verdict(changed: Callable[[Task], Task]) -> None:
    """lm-eval #4063 and others: a cache gave one model's or task's result to another."""
    task = judged_task(7)
    other = changed(task)
    verifier = Scripted(lambda task, text: float(task == other))
    with VerificationPool({"judged": verifier, "elsewhere": verifier}) as pool:
        judged = pool.judge([attempt("a", task), attempt("a", other)])
    assert [t.score for t in judged] == [0.0, 1.0]


def test_keys_hold_text_and_verifier_version() -> None:
    task = judged_task(7)
    refs = (REF, VerifierRef("scripted", "2"), VerifierRef("other", "1"))
    keys = {verdict_key(task, text, ref) for ref in refs for text in ("a", "b", "\ud800")}
    assert len(keys) == 9
    assert verdict_key(task, "a", REF) == verdict_key(replace(task, tier=3), "a", REF)


def test_memory_is_bounded() -> None:
    cache = MemoryCache(most=2)
    verdict = scored(REF, (VerdictPart("answer", 1.0),))
    cache.put("a", verdict)
    cache.put("b", verdict)
    assert cache.get("a") is verdict
    cache.put("c", verdict)
    assert [cache.get(key) for key in "abc"] == [verdict, None, verdict]


def test_a_file_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    texts = ["a", "bb", "zürich \ud800"]
    lives: list[list[Verdict | None]] = []
    for life in range(2):
        verifier = Scripted(length)
        with DiskCache(path) as cache, VerificationPool({"judged": verifier}, cache=cache) as pool:
            lives.append([t.verdict for t in pool.judge([attempt(text) for text in texts])])
        assert len(verifier.asked) == (0 if life else 3)
    assert lives[0] == lives[1]
    newer = Scripted(length, VerifierRef("scripted", "2"))
    with DiskCache(path) as cache, VerificationPool({"judged": newer}, cache=cache) as pool:
        pool.judge([attempt("a")])
    assert newer.asked == {"a": 1}


def test_what_has_no_score_is_not_kept_on_disk(tmp_path: Path) -> None:
    verifier = Scripted(lambda task, text: unjudged(REF, "verifier", "no idea"))
    for _ in range(2):
        with (
            DiskCache(tmp_path / "verdicts.sqlite") as cache,
            VerificationPool({"judged": verifier}, cache=cache) as pool,
        ):
            pool.judge([attempt("a")])
    assert verifier.asked == {"a": 2}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE verdicts_1 SET verdict = replace(verdict, '0.1', '1.0')",
        "UPDATE verdicts_1 SET verdict = '{}'",
        "UPDATE verdicts_1 SET verdict = x'00'",
        "UPDATE verdicts_1 SET key = key || 'f'",
    ],
)
def test_a_damaged_row_is_judged_again(tmp_path: Path, damage: str) -> None:
    """open-instruct #1518: a corrupt cache poisoned all runs."""
    path = tmp_path / "verdicts.sqlite"
    verdict = scored(REF, (VerdictPart("answer", 0.1),))
    with DiskCache(path) as cache:
        cache.put("abc", verdict)
        assert cache.get("abc") == verdict
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with DiskCache(path) as cache:
        assert cache.get("abc") is None
        assert cache.get("abcf") is None
        cache.put("abc", verdict)
        assert cache.get("abc") == verdict


def test_a_file_that_is_no_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError) as caught:
        DiskCache(path)
    assert str(path) in str(caught.value)
    assert "delete" in caught.value.hint
    with pytest.raises(StorageError):
        DiskCache(tmp_path / "nowhere" / "verdicts.sqlite")


# --- counts and threads ------------------------------------------------------------------------


def test_times_are_kept_for_each_verifier() -> None:
    quick, slow = (
        Scripted(length, VerifierRef("quick", "1")),
        Scripted(lambda task, text: time.sleep(0.03) or 1.0, VerifierRef("slow", "1")),
    )
    other = replace(judged_task(None), domain="other")
    with VerificationPool({"judged": quick, "other": slow}) as pool:
        pool.judge([attempt("a"), attempt("b"), attempt("c", other)])
        seconds = pool.stats().seconds
    assert {name: s.count for name, s in seconds.items()} == {"quick": 2, "slow": 1}
    assert seconds["slow"].p50 >= 0.03
    assert seconds["quick"].p95 < 0.03


def test_several_callers_share_the_workers() -> None:
    lock, state = threading.Lock(), Counter[str]()

    def count(task: Task, text: str) -> float:
        with lock:
            state["now"] += 1
            state["most"] = max(state["most"], state["now"])
        time.sleep(0.005)
        with lock:
            state["now"] -= 1
        return 1.0

    results: dict[int, list[Json]] = {}
    with VerificationPool({"judged": Scripted(count)}, workers=2) as pool:

        def call(number: int) -> None:
            judged = pool.judge([attempt(f"{number} {n}") for n in range(8)])
            results[number] = [t.score for t in judged]

        callers = [threading.Thread(target=call, args=(n,)) for n in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert results == {n: [1.0] * 8 for n in range(4)}
    assert state["most"] == 2


def test_threads_leave_when_the_pool_is_closed_or_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def alive() -> int:
        return sum(thread.name == "headrace-verify" for thread in threading.enumerate())

    before = alive()
    pool = VerificationPool({"judged": Scripted(length)}, workers=3)
    pool.judge([attempt(str(n)) for n in range(9)])
    assert alive() > before
    pool.close()
    assert alive() == before
    monkeypatch.setattr(pool_module, "_IDLE_S", 0.05)
    assert pool.judge([attempt("again")])[0].score == 0.5
    until = time.monotonic() + 5
    while alive() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert alive() == before
    assert pool.judge([attempt("and again")])[0].score == 0.9
    pool.close()
