"""The domain `extract/records`: read a record out of a text and write it as JSON."""

from __future__ import annotations

import json
import random

from headrace.types import Json, Message, Task, canonical_json, split_of
from headrace.verify.structured import StructuredOutput
from headrace_extract.texts import TIERS, Tier

__all__ = ["Records"]


class Records:
    """Five tiers, from a name and an age to deliveries with corrections, units and dates.

    A problem is the record that must be read; every text that holds it is on the same side of
    the split. An attempt earns the share of fields that are right, if that is more than
    half. The last JSON object of the answer counts, in a fence or not; fields that nobody asked
    for cost.
    """

    name = "extract/records"
    tiers = len(TIERS)

    def __init__(self) -> None:
        self.verifier = StructuredOutput()

    def task(self, tier: int, index: int) -> Task:
        """Candidate `index` (0..2**63 - 1) of tier `tier` (0..4); a pure function of the two."""
        rung = TIERS[tier]
        made = rung.make(random.Random(f"{self.name}/{tier}/{index}"))
        problem = f"{tier}:{canonical_json(made.record)}"
        return Task(
            domain=self.name,
            problem=problem,
            tier=tier,
            split=split_of(self.name, problem),
            messages=(Message.of("user", _prompt(rung, made.text)),),
            verifier=self.verifier.ref,
            answer={
                "wrapping": "anywhere",
                "expected": made.record,
                "fields": dict(rung.fields),
            },
            lineage={"decoy": made.decoy},
        )

    def reference(self, task: Task) -> str:
        """The record as JSON."""
        return json.dumps(task.answer["expected"])

    def wrong(self, task: Task) -> tuple[str, ...]:
        """What a careless reader would write, an empty object, the schema, and the examples."""
        rung = TIERS[task.tier]
        wrong: list[Json] = [task.lineage["decoy"], {}, rung.schema]
        wrong += [record for _, record in rung.examples]
        return tuple(json.dumps(record) for record in wrong)


def _prompt(rung: Tier, text: str) -> str:
    """Where examples show the form, they come in place of the schema: small models echo that."""
    lines = ["Read the text and write what it says as one JSON object. Write nothing else."]
    if rung.notes:
        lines.append(rung.notes)
    if rung.examples:
        lines.append(_described(rung.schema))
    else:
        lines.append(f"The object must match this JSON schema: {json.dumps(rung.schema)}")
    for example, record in rung.examples:
        lines += ["", f"Text: {example}", f"JSON: {json.dumps(record)}"]
    return "\n".join([*lines, "", f"Text: {text}", "JSON:"])


def _described(schema: Json) -> str:
    """A flat schema in words."""
    kinds = [f'"{name}" ({inner["type"]})' for name, inner in schema["properties"].items()]
    return f"Its keys are {', '.join(kinds[:-1])} and {kinds[-1]}."
