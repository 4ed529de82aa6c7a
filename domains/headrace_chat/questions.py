"""What is asked about a topic: intents, each in several wordings, by the shape of the answer.

A wording has `{one}` and `{many}` for the topic. `ask` makes a question, a pure function of a
random generator. May be known by the domains of this pack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from headrace_chat.topics import TOPICS, Kind, Topic

__all__ = ["SHAPES", "Question", "Shape", "ask", "wordings"]

Shape = Literal["sentence", "paragraph", "list", "any"]
"""How long an answer is asked for; "any" leaves it open."""

SHAPES: tuple[Shape, ...] = ("sentence", "paragraph", "list")
"""Those that say what they want, from the shortest to the longest."""

Wordings = Mapping[str, tuple[str, ...]]
"""Intent to its wordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a topic; `problem` is the same in every wording, shape and domain."""

    topic: Topic
    intent: str
    text: str

    @property
    def problem(self) -> str:
        return f"{self.intent}:{self.topic.one}"


_SENTENCE: Wordings = {
    "define": (
        "What is {one}? Answer in one sentence.",
        "In one sentence, what is {one}?",
        "Tell me in a single sentence what {one} is.",
    ),
    "describe": (
        "Describe {one} in one sentence.",
        "Write one sentence about {many}.",
        "Say something about {many} in one short sentence.",
    ),
    "fact": (
        "What is one interesting fact about {many}?",
        "Tell me one thing that everyone should know about {many}.",
    ),
}
_PARAGRAPH: Wordings = {
    "define": (
        "What is {one}? Explain it in a short paragraph.",
        "Can you tell me what {one} is? A few sentences are enough.",
    ),
    "describe": (
        "Describe {one} in a short paragraph.",
        "Write a short paragraph about {many}.",
        "I have to write a few sentences about {many}. Can you do it for me?",
    ),
    "child": (
        "Explain {many} to a child.",
        "How would you explain {many} to a child of six? Use a few simple sentences.",
        "My daughter asked me about {many}. What can I tell her?",
    ),
    "interest": (
        "Why do people find {many} interesting? Write a few sentences.",
        "What makes {many} special? Answer in a short paragraph.",
    ),
}
_LIST: Wordings = {
    "fact": (
        "List three facts about {many}.",
        "Give me a list of things that everyone should know about {many}.",
    ),
    "interest": (
        "Make a short list of reasons why people find {many} interesting.",
        "What are three reasons to learn more about {many}? Answer with a list.",
    ),
    "ask": (
        "List three good questions to ask an expert about {many}.",
        "I want to talk to an expert about {many}. Make me a list of questions.",
    ),
    "words": (
        "Make a list of five words that come to mind when you think of {many}, and say why.",
        "Which words go well with {many}? Give me a list, with a reason for each.",
    ),
}
_ANY: Wordings = {
    "define": ("What is {one}?", "Can you tell me what {one} is?", "Explain what {one} is."),
    "describe": ("Describe {one}.", "Write something about {many}.", "Tell me about {many}."),
    "fact": (
        "What should everyone know about {many}?",
        "Tell me something interesting about {many}.",
    ),
    "child": ("Explain {many} to a child.", "How would you explain {many} to a child?"),
    "interest": ("Why do people find {many} interesting?", "What makes {many} special?"),
}

_DO_SENTENCE: Wordings = {
    "tip": (
        "Give me a short tip for {many}.",
        "What is your best tip for {many}? One sentence is enough.",
        "Give me one piece of advice about {many}.",
    ),
    "why": (
        "Why do people like {many}? Answer in one sentence.",
        "In one sentence, what is good about {many}?",
    ),
    "describe": ("Write one sentence about {many}.", "Describe {many} in one sentence."),
}
_DO_PARAGRAPH: Wordings = {
    "tip": (
        "I am new to {many}. What should I know? A short paragraph is enough.",
        "What is the best way to begin with {many}? Write a few sentences.",
    ),
    "why": (
        "Why do people like {many}? Write a short paragraph.",
        "What is good about {many}? Answer in a few sentences.",
    ),
    "child": (
        "Explain {many} to a child.",
        "How would you explain {many} to a child of six? Use a few simple sentences.",
    ),
    "describe": ("Write a short paragraph about {many}.", "Describe {many} in a few sentences."),
}
_DO_LIST: Wordings = {
    "tip": ("Give me three tips for {many}, as a list.", "List some useful tips for {many}."),
    "steps": (
        "What are the steps of {many}? Answer with a list.",
        "Make a short list of what to do first when it comes to {many}.",
    ),
    "mistakes": (
        "List three mistakes that people make with {many}.",
        "What goes wrong most often with {many}? Make a list.",
    ),
}
_DO_ANY: Wordings = {
    "tip": ("Give me a tip for {many}.", "I am new to {many}. What should I know?"),
    "why": ("Why do people like {many}?", "What is good about {many}?"),
    "child": ("Explain {many} to a child.", "How would you explain {many} to a child?"),
    "describe": ("Describe {many}.", "Tell me about {many}."),
}

_WORDINGS: Mapping[Shape, tuple[Wordings, Wordings]] = {
    "sentence": (_SENTENCE, _DO_SENTENCE),
    "paragraph": (_PARAGRAPH, _DO_PARAGRAPH),
    "list": (_LIST, _DO_LIST),
    "any": (_ANY, _DO_ANY),
}
_GREETINGS = (*[""] * 6, "Hello! ", "Hi there. ")


def wordings(shape: Shape, kind: Kind) -> Wordings:
    """What can be asked about a kind of topic for an answer of a shape."""
    return _WORDINGS[shape][kind == "doing"]


def ask(shape: Shape, rng: Random, topics: Sequence[Topic] = TOPICS) -> Question:
    """A question for an answer of that shape, about one of `topics`."""
    topic = rng.choice(topics)
    every = wordings(shape, topic.kind)
    intent = rng.choice(list(every))
    wording = rng.choice(every[intent]).format(one=topic.one, many=topic.many)
    return Question(topic=topic, intent=intent, text=rng.choice(_GREETINGS) + wording)
