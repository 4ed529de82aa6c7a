"""The task pack `rg`: the generators of reasoning-gym as domains `rg/NAME`.

Tasks are made and judged in killable child processes (`worker`), which alone import
reasoning_gym; names and tiers come from a committed table (`table`). Imports the vocabulary of
headrace and what verifiers share, and nothing else of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import VerifierError
from headrace.protocols import Verifier
from headrace.types import (
    Json,
    Message,
    Task,
    Verdict,
    VerdictPart,
    VerifierRef,
    content_hash,
    split_of,
)
from headrace.verify.base import BaseVerifier
from headrace.verify.child import Child, ChildDied, ChildError, ChildSpent
from headrace.verify.verdicts import shown, unjudged
from headrace_reasoning_gym.table import table

__all__ = [
    "EXCLUDED",
    "MAX_CHARACTERS",
    "WORKER",
    "GeneratorDomain",
    "OwnScorer",
    "ReasoningGymPack",
    "final_answer",
    "pack",
]

WORKER = "headrace_reasoning_gym.worker"
EXCLUDED: Mapping[str, str] = {
    "composite": "a mixture of other generators; recipes mix domains themselves",
    "propositional_logic": "its premises often contradict each other, when every formula is "
    "right, and a weak one such as (P ∨ Q) follows from most of the rest: one constant answer "
    "earns full marks on many tasks",
}
"""Registered in reasoning_gym and not offered, with the reason."""
MAX_CHARACTERS = 20_000
ATTEMPTS = 20
MAKE_CPU, SCORE_CPU, SOLVE_CPU = 3.0, 6.0, 20.0
CHILDREN = 2
DEADLINE = 60.0
FULL_MARKS = 0.999

WAIVED: Mapping[str, Mapping[str, str]] = {
    "graph_color": {
        "foreign-answer": "the colouring of another graph with as many nodes may be proper here",
        "listed-answers": "the last one of a list may be proper too",
    },
    "puzzle24": {"foreign-answer": "two tasks may ask for 24 of the same four numbers"},
    "rush_hour": {
        "perturbed": "a car stops at whatever is in its way, so longer moves may do",
        "listed-answers": "moves that follow a solution may leave it one",
    },
    "sokoban": {"perturbed": "a move against a wall changes nothing"},
}
"""Probes of the audit that cannot hold for a generator, with the reason."""

_FORMAT = "Give your final answer between <answer> and </answer>."
_OPEN, _CLOSE = "<answer>", "</answer>"


def final_answer(text: str) -> tuple[str, bool]:
    """What stands in the last complete pair of answer tags, and whether there is such a pair.

    Without a pair the whole text is the answer. Both are stripped of surrounding space.

    >>> final_answer("<answer>3</answer> no, <answer> 4 </answer>")
    ('4', True)
    """
    start = text.rfind(_OPEN, 0, max(text.rfind(_CLOSE), 0))
    if start < 0:
        return text.strip(), False
    start += len(_OPEN)
    return text[start : text.index(_CLOSE, start)].strip(), True


class OwnScorer(BaseVerifier):
    """The verifier `rg/NAME`: 1 where the generator's own `score_answer` gives full marks, else 0.

    Its credit in parts is not passed on: it pays for shape (see `guards`). A text that its scorer
    fails on, or spends all its CPU on, is wrong: the scorer has judged this very task before and
    gets along with silence, so the text is the cause. Whatever else keeps it from a score (a dead
    or stalled process, an entry that came out differently) gives no score, and is the verifier's
    fault.
    """

    def __init__(self, name: str, child: Child) -> None:
        self._child = child
        self.ref = VerifierRef(name, f"{table().version}/2")

    def judge(self, task: Task, text: str) -> Verdict:
        """Parts: `answer` the score, `extracted` 0 or 1 and `raw`, which weigh nothing."""
        said, extracted = final_answer(text)
        if len(said) > MAX_CHARACTERS:
            return self._verdict(task, said, extracted, 0.0, "too long to be an answer")
        try:
            reply = self._reply(task, said)
        except ChildError as error:
            return unjudged(self.ref, "verifier", str(error))
        if reply["raw"] is None:
            return unjudged(self.ref, "verifier", reply["note"])
        return self._verdict(task, said, extracted, reply["raw"], reply["note"])

    def _reply(self, task: Task, said: str) -> Json:
        request = {
            "op": "score",
            "generator": task.answer["generator"],
            "level": task.answer["level"],
            "seed": task.answer["seed"],
            "digest": content_hash(task.problem),
        }
        try:
            return _patient(self._child, {**request, "text": said}, SCORE_CPU)
        except ChildSpent as error:
            silence = _patient(self._child, {**request, "text": ""}, SCORE_CPU)
            return silence if silence["raw"] is None else {"raw": 0.0, "note": error.what}

    def _verdict(self, task: Task, said: str, extracted: bool, raw: float, note: str) -> Verdict:
        score = float(raw >= FULL_MARKS)
        facts = {"expected": task.answer["answer"], "said": said, "paid": raw}
        return Verdict(
            score=score,
            verifier=self.ref,
            parts=(
                VerdictPart("answer", score, 1.0),
                VerdictPart("extracted", float(extracted), 0.0),
                VerdictPart("raw", raw, 0.0),
            ),
            evidence=shown({**facts, "note": note} if note else facts),
        )


class GeneratorDomain:
    """The domain `rg/NAME`: one generator, its usable curriculum levels as tiers.

    An attempt at an entry that is not sound, or takes more than MAKE_CPU seconds of CPU, gives
    way to the next seed. Machines differ in speed, so the seed that was taken is in the task.

    `Task.answer` holds what makes the entry again (generator, level, seed) and its reference
    answer, which is None where the scorer needs none.
    """

    def __init__(self, generator: str, child: Child) -> None:
        self._generator = generator
        self._levels = table().generators[generator].levels
        self._child = child
        self.name = f"rg/{generator}"
        self.tiers = len(self._levels)
        self.verifier: Verifier = OwnScorer(self.name, child)
        self.waived = WAIVED.get(generator, {})

    def task(self, tier: int, index: int) -> Task:
        """Candidate `index` (0..2**63 - 1) of tier `tier`; VerifierError if it cannot be made."""
        level = self._levels[tier]
        made = self._sound(level, index, where=f"{self.name}, tier {tier}, index {index}")
        question = made["question"]
        return Task(
            domain=self.name,
            problem=question,
            tier=tier,
            split=split_of(self.name, question),
            messages=(Message.of("user", f"{question.rstrip()}\n\n{_FORMAT}"),),
            verifier=self.verifier.ref,
            answer={
                "generator": self._generator,
                "tier": tier,
                "level": level,
                "index": index,
                "seed": made["seed"],
                "answer": made["answer"],
            },
        )

    def reference(self, task: Task) -> str | None:
        """The library's answer, or a solution of our own, in tags; None where none is found."""
        answer = task.answer["answer"]
        if answer is None:
            keys = ("generator", "level", "seed")
            request = {"op": "solve", **{key: task.answer[key] for key in keys}}
            try:
                answer = _patient(self._child, request, SOLVE_CPU)["answer"]
            except ChildError:
                return None
        return None if answer is None else f"{_OPEN}{answer}{_CLOSE}"

    def _sound(self, level: int | None, index: int, *, where: str) -> Json:
        """The first entry that can be judged, among attempts that are bounded in CPU."""
        request = {"op": "make", "generator": self._generator, "level": level, "index": index}
        reasons: list[str] = []
        for attempt in range(ATTEMPTS):
            try:
                made = _patient(self._child, {**request, "attempt": attempt}, MAKE_CPU)
            except ChildSpent as error:
                made = {"error": error.what}
            except ChildError as error:
                raise VerifierError(f"no task could be made: {error}", where=where) from error
            if "error" not in made:
                return made
            reasons.append(made["error"])
        raise VerifierError(
            f"no sound entry in {ATTEMPTS} attempts; the first: {reasons[0]}",
            where=where,
            hint=f"lower last_tier of {self.name}, or leave it out",
        )


class ReasoningGymPack:
    """All generators, spread over two child processes, each started by the first task it makes.

    A generator keeps to its process, which remembers the entries that it will have to score.
    """

    def __init__(self) -> None:
        self.children = tuple(Child(WORKER) for _ in range(CHILDREN))

    def names(self) -> list[str]:
        return [f"rg/{generator}" for generator in table().generators]

    def open(self, name: str) -> GeneratorDomain:
        """The domain `rg/NAME`; KeyError for a generator that is not in the table."""
        generator = name.removeprefix("rg/")
        return GeneratorDomain(generator, self.child_of(generator))

    def child_of(self, generator: str) -> Child:
        """The process in which a generator lives; KeyError for one that is not in the table."""
        places = {known: place for place, known in enumerate(table().generators)}
        return self.children[places[generator] % len(self.children)]

    def close(self) -> None:
        """End the child processes; they start again if they are needed again."""
        for child in self.children:
            child.close()


def _patient(child: Child, request: Json, cpu: float) -> Json:
    """One more try where the child died: someone else may have killed it."""
    try:
        return child.call(request, deadline=DEADLINE, cpu=cpu)
    except ChildDied:
        return child.call(request, deadline=DEADLINE, cpu=cpu)


pack = ReasoningGymPack()
