"""The task pack `rg`: every generator of reasoning-gym as a domain `rg/NAME`.

Tasks are made and judged in one killable child process (`worker`), which alone imports
reasoning_gym; names and tiers come from a committed table (`table`). Imports the vocabulary
and `headrace.verify.child` of headrace, and nothing else of it.
"""

from __future__ import annotations

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
from headrace.verify.child import Child, ChildDied, ChildError, ChildSpent
from headrace_reasoning_gym.table import table

__all__ = [
    "MAX_CHARACTERS",
    "NOT_GENERATORS",
    "WORKER",
    "GeneratorDomain",
    "OwnScorer",
    "ReasoningGymPack",
    "final_answer",
    "pack",
]

WORKER = "headrace_reasoning_gym.worker"
NOT_GENERATORS = frozenset({"composite"})
"""Registered in reasoning_gym but only a mixture of others; headrace mixes domains itself."""
MAX_CHARACTERS = 20_000
ATTEMPTS = 20
MAKE_CPU, SCORE_CPU = 3.0, 6.0
DEADLINE = 60.0

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


class OwnScorer:
    """The verifier `rg/NAME`: the generator's own `score_answer`, above what silence is paid.

    score = (raw - floor) / (1 - floor), clipped to [0, 1], where the floor is what the scorer
    pays for no answer to this very task. Whatever keeps the scorer from a finite score
    (exception, deadline, death of its process) gives no score, and is the verifier's fault.
    """

    def __init__(self, name: str, child: Child) -> None:
        self._child = child
        self.ref = VerifierRef(name, f"{table().version}/1")

    def judge(self, task: Task, text: str) -> Verdict:
        """Parts: `answer` the score, `extracted` 0 or 1 and `raw`, which weigh nothing."""
        said, extracted = final_answer(text)
        if len(said) > MAX_CHARACTERS:
            return self._verdict(0.0, extracted, f"an answer of {len(said)} characters")
        request = {
            "op": "score",
            "generator": task.answer["generator"],
            "level": task.answer["level"],
            "seed": task.answer["seed"],
            "digest": content_hash(task.problem),
            "text": said,
        }
        try:
            reply = _patient(self._child, request, SCORE_CPU)
        except ChildError as error:
            return self._unjudged(str(error))
        if reply["raw"] is None:
            return self._unjudged(reply["note"])
        floor = reply["floor"]
        score = min(1.0, max(0.0, (reply["raw"] - floor) / (1.0 - floor)))
        return self._verdict(score, extracted, reply["note"], raw=reply["raw"])

    def _verdict(self, score: float, extracted: bool, note: str, raw: float = 0.0) -> Verdict:
        return Verdict(
            score=score,
            verifier=self.ref,
            parts=(
                VerdictPart("answer", score, 1.0),
                VerdictPart("extracted", float(extracted), 0.0),
                VerdictPart("raw", raw, 0.0),
            ),
            evidence=note,
        )

    def _unjudged(self, evidence: str) -> Verdict:
        return Verdict(score=None, verifier=self.ref, evidence=evidence, fault="verifier")


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
    """All generators, sharing one child process that starts at the first task."""

    def __init__(self) -> None:
        self.child = Child(WORKER)

    def names(self) -> list[str]:
        return [f"rg/{generator}" for generator in table().generators]

    def open(self, name: str) -> GeneratorDomain:
        """The domain `rg/NAME`; KeyError for a generator that is not in the table."""
        return GeneratorDomain(name.removeprefix("rg/"), self.child)

    def close(self) -> None:
        """End the child process; it starts again if it is needed again."""
        self.child.close()


def _patient(child: Child, request: Json, cpu: float) -> Json:
    """One more try where the child died: someone else may have killed it."""
    try:
        return child.call(request, deadline=DEADLINE, cpu=cpu)
    except ChildDied:
        return child.call(request, deadline=DEADLINE, cpu=cpu)


pack = ReasoningGymPack()
