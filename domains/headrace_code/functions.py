"""The domain `code/functions`: functions to write, made from templates.

An index chooses a template of its tier, its constants, the names and the phrasing. The cases of
a problem are the same in every phrasing; two are shown in the prompt, the others are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from headrace.types import Json, Message, Task, canonical_json, content_hash, split_of
from headrace.verify.code import CodeFunctions
from headrace.verify.code.specimens import fenced
from headrace.verify.code.values import encode, literal
from headrace_code.template import Template
from headrace_code.templates import TEMPLATES

__all__ = ["CASES", "VISIBLE", "Functions"]

CASES, VISIBLE = 8, 2
_TRIES = 60

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "numbers": ("numbers", "values", "nums"),
    "n": ("n", "num", "number"),
    "text": ("text", "string", "s"),
    "items": ("items", "seq", "entries"),
    "words": ("words", "strings", "names"),
    "sentence": ("sentence", "line", "phrase"),
    "spans": ("spans", "intervals", "ranges"),
    "grid": ("grid", "matrix", "rows_of_cells"),
    "amount": ("amount", "target", "goal"),
}

_REQUESTS = (
    "Write a Python function `{call}` that {what}.\n\n{examples}",
    "Implement `{call}` in Python. The function {what}.\n\n{examples}",
    "{examples}\n\nDefine the Python function `{call}`, which {what}.",
    "I need a function `{call}` that {what}. Please write it in Python.\n\n{examples}",
)
_ANSWER = "\n\nAnswer with one Python code block."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A template with everything chosen: a task in one phrasing."""

    template: Template
    constants: Mapping[str, Any]
    entry: str
    names: Mapping[str, str]
    says: str
    request: str

    @property
    def problem(self) -> str:
        """Which function it is, whatever it is called and however it is asked for."""
        return f"{self.template.name} {canonical_json(dict(self.constants))}"

    def call(self, arguments: str) -> str:
        return f"{self.entry}({arguments})"

    def source(self, body: str) -> str:
        code = body.format(**self.constants, **self.names)
        return f"def {self.call(', '.join(self.names.values()))}:\n{code}\n"


class Functions:
    """Five tiers; see `templates`. A problem (a template with its constants) is on one side of
    the split in all its phrasings."""

    name = "code/functions"
    tiers = 5
    waived: ClassVar[Mapping[str, str]] = {
        "listed-answers": "other functions beside the one that is asked for bet on nothing"
    }

    def __init__(self) -> None:
        self.verifier = CodeFunctions()
        self._ladder = [[t for t in TEMPLATES if t.tier == tier] for tier in range(self.tiers)]

    def task(self, tier: int, index: int) -> Task:
        """Candidate `index` (0..2**63 - 1) of tier `tier` (0..4); a pure function of the two."""
        choice = self._choice(tier, index)
        cases = _cases(choice)
        shown = [
            f"`{choice.call(', '.join(map(literal, case['args'])))}` returns "
            f"`{literal(case['expected'])}`."
            for case in cases[:VISIBLE]
        ]
        prompt = choice.request.format(
            call=choice.call(", ".join(choice.names.values())),
            what=choice.says.format(
                **choice.constants,
                **{name: f"`{chosen}`" for name, chosen in choice.names.items()},
            ),
            examples="Examples:\n" + "\n".join(shown),
        )
        return Task(
            domain=self.name,
            problem=choice.problem,
            tier=tier,
            split=split_of(self.name, choice.problem),
            messages=(Message.of("user", prompt + _ANSWER),),
            verifier=self.verifier.ref,
            answer={"entry": choice.entry, "cases": cases},
            lineage={"template": choice.template.name, "index": index},
        )

    def reference(self, task: Task) -> str | None:
        """Another implementation than the one that made the cases."""
        choice = self._choice(task.tier, int(task.lineage["index"]))
        return fenced(choice.source(choice.template.body))

    def wrong(self, task: Task) -> tuple[str, ...]:
        """One that is almost right, one that knows the shown examples by heart, and one that
        gives the right value in a list."""
        choice = self._choice(task.tier, int(task.lineage["index"]))
        known = "".join(
            f"    if list(given) == {literal(case['args'])}:\n"
            f"        return {literal(case['expected'])}\n"
            for case in task.answer["cases"]
            if case["visible"]
        )
        right = choice.source(choice.template.body)
        return (
            fenced(choice.source(choice.template.near)),
            fenced(f"def {choice.entry}(*given):\n{known}    return None\n"),
            fenced(
                f"{right}\n\n_right = {choice.entry}\n\n\n"
                f"def {choice.entry}(*given):\n    return [_right(*given)]\n"
            ),
        )

    def _choice(self, tier: int, index: int) -> _Choice:
        rest, place = divmod(index, len(self._ladder[tier]))
        template = self._ladder[tier][place]
        rest, number = divmod(rest, template.size)
        rest, entry = divmod(rest, len(template.entries))
        rest, says = divmod(rest, len(template.says))
        rest, request = divmod(rest, len(_REQUESTS))
        names: dict[str, str] = {}
        for parameter in template.parameters:
            choices = _SYNONYMS.get(parameter, (parameter,))
            names[parameter] = choices[rest % len(choices)]
        return _Choice(
            template=template,
            constants=template.constants(number),
            entry=template.entries[entry],
            names=names,
            says=template.says[says],
            request=_REQUESTS[request],
        )


def _cases(choice: _Choice) -> list[dict[str, Json]]:
    """The cases of a problem: two drawn ones are shown; edges and other drawn ones are not."""
    template, constants = choice.template, dict(choice.constants)
    rng = Random(content_hash(choice.problem))
    found: dict[str, tuple[Any, ...]] = {}
    edges = {_spelled(edge): edge for edge in template.edges}
    for _ in range(_TRIES):
        if len(found) + len(edges) >= CASES and len(found) >= VISIBLE + 1:
            break
        arguments = template.draw(rng, constants)
        if _spelled(arguments) not in edges:
            found.setdefault(_spelled(arguments), arguments)
    return [
        {
            "args": [encode(argument) for argument in arguments],
            "expected": encode(template.right(*arguments, **constants)),
            "visible": number < VISIBLE,
        }
        for number, arguments in enumerate([*found.values(), *edges.values()])
    ]


def _spelled(arguments: tuple[Any, ...]) -> str:
    return canonical_json([encode(argument) for argument in arguments])
