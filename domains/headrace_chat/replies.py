"""Replies that are right by construction: about a topic, in a shape, true of nothing much.

They hold no word of any other topic. May be known by the domains of this pack.
"""

from __future__ import annotations

from headrace_chat.form import Form
from headrace_chat.questions import Shape
from headrace_chat.topics import Topic

__all__ = ["FORMS", "FURTHER", "form_of", "opening", "reply"]

FORMS: dict[Shape, tuple[int, int, int]] = {
    "sentence": (4, 80, 0),
    "paragraph": (15, 200, 0),
    "list": (6, 250, 2),
    "any": (4, 250, 0),
}
"""The fewest and most words of a reply and the fewest list items, by shape."""

FURTHER = (
    "Whoever takes a closer look soon finds a good reason for nearly every detail.",
    "Begin with what you see for yourself and write it down.",
    "Then ask somebody who has spent years on it.",
    "A good question is worth more than a quick answer.",
    "Most of what we believe about it turns out to be half of the story.",
    "Give it an hour of your week and see where that leads.",
    "Some will tell you that it takes talent.",
    "In truth it takes a little care and a lot of trying.",
    "Nobody has ever seen all of it.",
    "That is what keeps it fresh after all these years.",
)
"""Sentences without commas that may follow in any reply."""


def form_of(shape: Shape, topic: Topic) -> Form:
    """What a reply of that shape about a topic has to be."""
    least, most, items = FORMS[shape]
    return Form(topic=topic.words, least=least, most=most, items=items)


def opening(topic: Topic) -> str:
    """The topic as the beginning of a sentence, with its verb: "Bicycles are"."""
    return f"{topic.many[0].upper()}{topic.many[1:]} {topic.are}"


def reply(shape: Shape, topic: Topic) -> str:
    """A well formed reply of that shape; the same for every question about the topic."""
    if shape == "list":
        items = "\n".join(f"- {said}" for said in FURTHER[:3])
        return f"Here are three thoughts about {topic.many}:\n{items}"
    sentence = (
        f"{opening(topic)} one of those subjects that look plain at first, and turn out to have "
        "more to them than most of us would ever expect."
    )
    return sentence if shape == "sentence" else " ".join((sentence, *FURTHER[:3]))
