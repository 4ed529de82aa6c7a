"""The verifier `math-answer`: finds the answer, compares it here or in a killable child.

Known by task packs and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.base import BaseVerifier
from headrace.verify.child import ChildDied, ChildError, ChildSpent, ChildTimeout
from headrace.verify.children import Children
from headrace.verify.kinds import Surface
from headrace.verify.math.compare import Comparison, NeedsAlgebra, NoAlgebra, is_plain
from headrace.verify.math.extract import Found, extract
from headrace.verify.math.labels import without_noun
from headrace.verify.math.notation import clean, mentions
from headrace.verify.math.numerals import read_numeral
from headrace.verify.math.reading import Unreadable, readings
from headrace.verify.math.reference import BadReference, Reference
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["REF", "MathAnswer"]

REF = VerifierRef("math-answer", "1")
WORKER = "headrace.verify.math.worker"
MAX_ANSWER = 1000
EXPENSIVE, CRASHED = "too expensive to compare", "the comparison crashed"
_WORK = re.compile(r"[+*/^=<>\\]|[0-9)]\s*[-\u2212]")


class MathAnswer(BaseVerifier):
    r"""1 if the answer at the end of the text says what the reference says, else 0.

    `Task.answer` is the reference as a text (LaTeX or plain) or a number, or an object with it
    in `answer` and any of these options:

    - `tolerance`: `{"absolute": a, "relative": r}`, r < 1; without it equality is exact, and
      0.333333 is not 1/3;
    - `unit`: what the reference is in, where its text does not say; an answer must then name
      the same unit (the unit of an answer is not judged where the reference has none);
    - `unit_optional`: an answer may leave the unit out;
    - `convert`: any unit of the same kind will do, and the number is converted;
    - `percent`: "exact", or "optional" where 50 passes for 50%; 0.5 always does;
    - `ordered`: a bare list must keep the order (sets never do, tuples always do);
    - `kind`: "interval" reads `(a, b)` as one, "list" reads `[a, b]` as one, "text" compares
      words; "auto" is strict: a tuple is no interval;
    - `labels`: words that may stand behind a number (`["eggs"]`), beside the nouns of the prompt;
    - `worked_out`: False where `2 + 3` may pass for 5. By default a number must be given as a
      number if the reference is, an integral must not be left standing, and an expression
      that was copied from the prompt is no answer unless the reference stands there too.

    Parts: `answer` (weight 1), `extracted` (0 where no answer was found at all), `hack`.
    Both numbers written out: decided here, exactly. Otherwise in a child process with `cpu`
    seconds of processor time: whoever needs more has given no answer. `deadline` (seconds of
    the clock) bounds the wait for a machine that is busy or broken; missing it is nobody's 0.
    """

    ref = REF
    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "number")

    def __init__(
        self, *, size: int = 2, cpu: float = 5.0, deadline: float = 120.0, memory_mb: int = 2048
    ) -> None:
        self._children = Children(WORKER, size=size, memory_mb=memory_mb)
        self._cpu = cpu
        self._deadline = deadline

    def close(self) -> None:
        """End the child processes; a later judgement starts them again."""
        self._children.close()

    def judge(self, task: Task, text: str) -> Verdict:
        """Never 0 for what the text could not cause: see `unjudged`."""
        try:
            reference = Reference.of(task.answer)
            plain = all(is_plain(r) for r in readings(reference.text, reference.manner()))
        except (BadReference, Unreadable) as error:
            return unjudged(self.ref, "task", {"answer": task.answer, "why": str(error)})
        found = extract(text)
        if found is None:
            return self._verdict(reference, None, False, ["no answer found"])
        if len(found.text) > max(MAX_ANSWER, 4 * len(reference.text)):
            return self._verdict(reference, found, False, ["too long for an answer"])
        if reference.worked_out and _copied(task, reference, found.text):
            notes = ["copied from the prompt"]
            return self._verdict(reference, found, False, notes, tricky=True)
        said = without_noun(found.text, _prompt(task))
        if plain:
            comparison = Comparison(reference, NoAlgebra())
            try:
                return self._verdict(reference, found, comparison.run(said), comparison.notes)
            except Unreadable as error:
                return self._verdict(reference, found, False, [f"unreadable: {error}"])
            except NeedsAlgebra:
                pass
        return self._ask(task, reference, found, said)

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """The number with another sign, size or last digit."""
        del reference
        try:
            gold = Reference.of(task.answer)
        except BadReference:
            return ()
        number = read_numeral(clean(gold.text))
        if number is None:
            return ()
        value = number.value
        others = [str(other) for other in (value + 1, value * 10, value / 10, -value)]
        wrong = [other for other in others if not Comparison(gold, NoAlgebra()).run(other)]
        return tuple(f"\\boxed{{{other}}}" for other in wrong)

    def _ask(self, task: Task, reference: Reference, found: Found, said: str) -> Verdict:
        try:
            reply = self._call(task, said)
        except ChildSpent:
            return self._blame(task, reference, found, EXPENSIVE)
        except ChildDied:
            return self._blame(task, reference, found, CRASHED)
        except ChildTimeout as error:
            return unjudged(self.ref, "infrastructure", {"said": found.text, "why": str(error)})
        except ChildError as error:
            return unjudged(self.ref, "verifier", {"said": found.text, "why": str(error)})
        if reply.get("unreadable") == "reference":
            return unjudged(self.ref, "task", {"answer": task.answer, "why": reply["notes"]})
        if "expensive" in reply:
            notes = [f"{EXPENSIVE}: {reply['expensive']}"]
            return self._verdict(reference, found, False, notes, tricky=True)
        if "unreadable" in reply:
            return self._verdict(reference, found, False, ["unreadable", *reply["notes"]])
        return self._verdict(reference, found, reply["same"], reply["notes"])

    def _call(self, task: Task, said: str | None) -> Json:
        request = {"answer": task.answer, "said": said}
        return self._children.call(request, deadline=self._deadline, cpu=self._cpu)

    def _blame(self, task: Task, reference: Reference, found: Found, what: str) -> Verdict:
        """Whose fault it is that `what` happened: the reference alone shows it."""
        try:
            reply = self._call(task, None)
        except ChildSpent as error:
            return unjudged(self.ref, "task", {"answer": task.answer, "why": str(error)})
        except ChildTimeout as error:
            return unjudged(self.ref, "infrastructure", {"why": str(error)})
        except ChildError as error:
            return unjudged(self.ref, "verifier", {"answer": task.answer, "why": str(error)})
        if reply.get("unreadable") == "reference":
            return unjudged(self.ref, "task", {"answer": task.answer, "why": reply["notes"]})
        return self._verdict(reference, found, False, [what], tricky=True)

    def _verdict(
        self,
        reference: Reference,
        found: Found | None,
        right: bool,
        notes: Sequence[str],
        *,
        tricky: bool = False,
    ) -> Verdict:
        foreign = found is not None and any(c.isdigit() and c > "\x7f" for c in found.text)
        evidence: Mapping[str, Json] = {
            "expected": reference.text,
            "said": None if found is None else found.text,
            "place": None if found is None else found.place,
            "why": list(dict.fromkeys(notes)),
        }
        parts = (
            VerdictPart("answer", float(right)),
            VerdictPart("extracted", float(found is not None), 0.0),
            hack(tricky or foreign),
        )
        return scored(self.ref, parts, evidence=evidence)


def _prompt(task: Task) -> str:
    return "\n".join(message.text for message in task.messages)


def _copied(task: Task, reference: Reference, said: str) -> bool:
    """Whether the answer is a piece of work from the prompt, put back unworked."""
    number = read_numeral(clean(said))
    plain = number is not None and number.worked_out and number.reduced
    if plain or not _WORK.search(said):
        return False
    prompt = _prompt(task)
    return mentions(prompt, said) and not mentions(prompt, reference.text)
