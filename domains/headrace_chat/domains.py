"""The domains `chat/open` and `chat/instructed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from headrace.kit import Ask, Asked, Question
from headrace.protocols import Verifier
from headrace.types import Task, split_of
from headrace.verify.compose import Gate
from headrace.verify.instructions import Instructions
from headrace_chat import demands, questions
from headrace_chat.form import ChatForm
from headrace_chat.questions import SHAPES, ask
from headrace_chat.replies import form_of, reply
from headrace_chat.topics import TOPICS, Topic

__all__ = ["INSTRUCTED", "OPEN", "Chat"]

_PACK = "chat"


class Chat(Asked):
    """A domain of this pack: a question is held out in both of them or in none.

    `waived` are probes of the audit that cannot hold for it, with reasons.
    """

    def __init__(
        self,
        name: str,
        *,
        tiers: int,
        ask: Ask,
        verifier: Verifier,
        waived: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, tiers=tiers, ask=ask, verifier=verifier)
        self.waived = dict(waived or {})

    def task(self, tier: int, index: int) -> Task:
        """Candidate `index` (0..2**63 - 1) of tier `tier`; a pure function of the two."""
        task = super().task(tier, index)
        return replace(task, split=split_of(_PACK, task.problem))


def _open(tier: int, rng: Random) -> Question:
    shape = SHAPES[tier]
    asked = ask(shape, rng)
    other = _other(asked.topic, rng)
    return Question(
        prompt=asked.text,
        answer=form_of(shape, asked.topic).answer,
        reference=reply(shape, asked.topic),
        wrong=("", *_careless(asked), reply(shape, other)),
        problem=asked.problem,
    )


def _instructed(tier: int, rng: Random) -> Question:
    asked = ask("any", rng)
    topic, other = asked.topic, _other(asked.topic, rng)
    kinds = (rng.choice(demands.KINDS),) if tier == 0 else rng.choice(demands.PAIRS)
    asks = [kind.make(rng, topic) for kind in kinds]
    slips = [
        demands.draft(topic, [kept for kept in asks if kept is not one], [one]).text for one in asks
    ]
    return Question(
        prompt=" ".join((asked.text, *(one.says for one in asks))),
        answer={
            "form": form_of("any", topic).answer,
            "order": {"instructions": [one.answer for one in asks]},
        },
        reference=demands.draft(topic, asks).text,
        wrong=("", *_careless(asked), demands.draft(other, asks).text, *slips),
        problem=asked.problem,
    )


def _careless(asked: questions.Question) -> tuple[str, str]:
    """The request over and over, and a loop."""
    loop = f"{asked.topic.key} is what I like to talk about, and "
    return " ".join([asked.text] * 8), loop.capitalize() * 20


def _other(topic: Topic, rng: Random) -> Topic:
    return rng.choice([one for one in TOPICS if one is not topic])


OPEN = Chat("chat/open", tiers=len(SHAPES), ask=_open, verifier=ChatForm())
"""Everyday questions; the tiers ask for a sentence, a paragraph and a list."""

INSTRUCTED = Chat(
    "chat/instructed",
    tiers=2,
    ask=_instructed,
    verifier=Gate(
        ChatForm(), Instructions(), gate_key="form", then_key="order", id="chat-instructed"
    ),
    waived={
        "listed-answers": "sentences about other topics after a right reply break no instruction",
    },
)
"""The same questions with one instruction to follow (tier 0), or two."""
