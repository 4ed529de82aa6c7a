"""The verifier `instructions`: does a reply follow every instruction it was given?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from headrace.errors import UsageError
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.instructions.answered import LONGEST, why_no_answer
from headrace.verify.instructions.disguise import seen
from headrace.verify.instructions.orders import Instruction, Order, read_order
from headrace.verify.instructions.prose import Reply
from headrace.verify.instructions.rules import Finding
from headrace.verify.kinds import Surface
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["ID", "VERSION", "Instructions"]

ID, VERSION = "instructions", "1"


class Instructions(BaseVerifier):
    """Checks verifiable instructions, each by its rule (`registry.RULES`).

    `Task.answer`: {"instructions": [{"id": ..., "kwargs": {...}}, ...]}, or the form of IFEval
    {"instruction_id_list": [...], "kwargs": [...]}; repeated ids are each checked. Options:

    - "mode": "strict" (default), or "loose": an instruction counts as followed if the reply
      follows it without its first line, its last line, both, or its asterisks. What is followed
      strictly is followed loosely.
    - "score": "all" (default, 1 only if every instruction is followed) or "mean" (their share).
    - "min_words": the fewest words that are an answer; 3, or 1 where an instruction asks for a
      brief answer.
    - "echo": "refuse" (default; "allow" where an instruction asks for a copy): whether a reply
      that gives back the request is no answer. A task that asks to edit a text of its prompt
      should allow it.

    A reply that is no answer (`answered.why_no_answer`) scores 0. An instruction is passive if
    text that knows nothing of it may well follow it (no commas, fewer than 9 words); with "mean",
    passive ones earn only beside one that is not. A task of passive instructions alone pays for
    any text (`floor` says 1): a second verifier of the content has to gate it. This holds, less
    so, for all of them: instructions say how, never whether the answer is right.

    Unknown ids and missing, unknown or wrong arguments are the task's fault, never a score.
    Thinking blocks are no part of a reply; hidden markup is removed; a reply with invisible or
    look-alike characters is no answer. Parts: each instruction by its id ("id#2" for a repeated
    one), `all`, `answered`, and `hack` where something was hidden or disguised.
    """

    ref = VerifierRef(ID, VERSION)
    surfaces: ClassVar[tuple[Surface, ...]] = ("instruction", "text")

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on a reply; unjudged for a task that cannot be understood."""
        try:
            order = read_order(task.answer)
        except UsageError as error:
            facts = {"what": error.what, "where": error.where, "hint": error.hint}
            return unjudged(self.ref, "task", facts)
        own = without_thinking(text)
        if len(own) > LONGEST:
            shown, no_answer = seen(""), f"it has {len(own)} characters, more than {LONGEST}"
        else:
            shown = seen(own)
            no_answer = why_no_answer(shown, order, _prompt(task))
        findings = [
            Finding(False, no_answer) if no_answer else _followed(instruction, shown.text, order)
            for instruction in order.instructions
        ]
        if no_answer is None and not _earned(order, findings):
            no_answer = "it follows nothing but what any text may follow"
        return scored(
            self.ref,
            [
                *_parts(order, findings, answered=no_answer is None),
                hack(shown.hidden or bool(shown.disguises)),
            ],
            evidence=_evidence(order, findings, no_answer),
        )

    def floor(self, task: Task) -> float:
        """1 for a task that any text may follow, else 0."""
        try:
            order = read_order(task.answer)
        except UsageError:
            return 0.0
        return float(all(instruction.passive for instruction in order.instructions))

    def hints(self, task: Task) -> Mapping[str, str]:
        """`instructions`: their wording; `keywords`: the words that they name."""
        try:
            order = read_order(task.answer)
        except UsageError:
            return {}
        wordings = [one.rule.describe(one.args) for one in order.instructions]
        named = [word for one in order.instructions for word in _named(one.args)]
        return {"instructions": " ".join(wordings), "keywords": ", ".join(named) or "the answer"}


def _prompt(task: Task) -> str:
    return "\n".join(message.text for message in task.messages)


def _named(args: Mapping[str, Json]) -> Iterable[str]:
    """The words that arguments name, without texts to be repeated or compared with."""
    for name in ("keywords", "keyword", "word", "first_word", "section_spliter"):
        value = args.get(name, [])
        yield from [value] if isinstance(value, str) else value


def _variants(text: str) -> list[str]:
    """What a reply becomes in loose mode: without its first and last lines, or asterisks."""
    lines = text.strip().split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return [*cut, *(part.replace("*", "") for part in (text, *cut))]


def _followed(instruction: Instruction, text: str, order: Order) -> Finding:
    """What the rule finds in the reply; in loose mode also in its variants that are not empty."""
    strict = instruction.rule.check(Reply(text), instruction.args)
    if strict.ok or order.mode == "strict":
        return strict
    for variant in _variants(text):
        reply = Reply(variant)
        if len(reply.words) >= order.min_words:
            finding = instruction.rule.check(reply, instruction.args)
            if finding.ok:
                return finding
    return strict


def _earned(order: Order, findings: Sequence[Finding]) -> bool:
    """Whether the reply follows one instruction that asks for something, if there is any."""
    asking = [
        finding.ok
        for instruction, finding in zip(order.instructions, findings, strict=True)
        if not instruction.passive
    ]
    return not asking or any(asking)


def _parts(order: Order, findings: Sequence[Finding], *, answered: bool) -> list[VerdictPart]:
    everything = float(all(finding.ok for finding in findings))
    whole = order.score == "all"
    weight = 1.0 if answered and not whole else 0.0
    return [
        VerdictPart("all", everything, float(answered and whole)),
        VerdictPart("answered", float(answered), float(not answered)),
        *(
            VerdictPart(instruction.name, float(finding.ok), weight)
            for instruction, finding in zip(order.instructions, findings, strict=True)
        ),
    ]


def _evidence(
    order: Order, findings: Sequence[Finding], no_answer: str | None
) -> Mapping[str, Json]:
    if no_answer is not None and all(finding.found == no_answer for finding in findings):
        return {"no answer": no_answer}
    pairs = list(zip(order.instructions, findings, strict=True))
    facts: dict[str, Json] = {"no answer": no_answer} if no_answer is not None else {}
    facts["not followed"] = [
        {"id": one.name, "asked": one.rule.describe(one.args)[:400], "found": finding.found}
        for one, finding in pairs
        if not finding.ok
    ]
    facts["followed"] = [
        {"id": one.name, "found": finding.found} for one, finding in pairs if finding.ok
    ]
    return facts
