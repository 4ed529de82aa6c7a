"""A chat template, asked for its frame: its own text, with a placeholder for all that is said.

From frames one knows, before anything is encoded, what of a conversation the template writes and
what a message. Many conversations have one frame, which is made once. Knows messages and the
template; knows no token ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from jinja2 import TemplateError

from headrace.data.encoding import Tokenizer
from headrace.data.messages import RecordedMessage
from headrace.errors import ModelError
from headrace.types import Json, Message, ToolCall

__all__ = ["PLACES", "Template", "Turn"]

PLACES = re.compile("headrace([0-9]+)message")
"""A placeholder; its number counts the slots of a conversation."""

_PLACE = "headrace{}message"
_CACHED = 4096
_OPENING = re.compile(r"\s*(?:<think>|<\|begin_of_thought\|>)?\s*")
_REFUSALS = (TemplateError, TypeError, ValueError)

Tools = Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message as the template sees it.

    `content` and `thought` alternate between what surrounds and what is said: even places hold
    text of the frame (space, reasoning tags), odd ones a slot. `answers`: the last slot of the
    content is the answer, which no template may leave out. `extra` is the JSON of further fields.
    `trained`: it is learned from.
    """

    role: str
    content: tuple[str, ...]
    thought: tuple[str, ...] | None = None
    answers: bool = True
    extra: str = ""
    trained: bool = False

    @classmethod
    def of(cls, message: Message) -> Turn:
        """A message of a prompt; all that is said in it is one slot."""
        return cls.plain(message.role, message.text)

    @classmethod
    def plain(cls, role: str, text: str) -> Turn:
        content = _slotted(text)
        return cls(role=role, content=content, answers=len(content) > 1)

    @property
    def slots(self) -> tuple[str, ...]:
        """What is said, in the order of the placeholders: the content's slots, the thought's."""
        return (*self.content[1::2], *(self.thought or ())[1::2])

    @property
    def shape(self) -> tuple[object, ...]:
        """All that the frame depends on."""
        thought = None if self.thought is None else (len(self.thought), self.thought[::2])
        return (self.role, len(self.content), self.content[::2], thought, self.extra, self.answers)

    def message(self, first: int | None = None) -> dict[str, Json]:
        """The message for the template; with placeholders from number `first` on, if given."""
        count = len(self.content) // 2
        message: dict[str, Json] = {"role": self.role, "content": _filled(self.content, first)}
        if self.thought is not None:
            after = None if first is None else first + count
            message["reasoning_content"] = _filled(self.thought, after)
        return {**message, **json.loads(self.extra)} if self.extra else message


def _slotted(text: str) -> tuple[str, ...]:
    """The text as a slot between the space around it; nothing but space is no slot."""
    core = text.strip()
    if not core:
        return (text,)
    start = text.index(core)
    return (text[:start], core, text[start + len(core) :])


def _filled(parts: tuple[str, ...], first: int | None) -> str:
    if first is None:
        return "".join(parts)
    return "".join(
        _PLACE.format(first + place // 2) if place % 2 else part for place, part in enumerate(parts)
    )


class Template:
    """The chat template of one tokenizer; without one, texts with blank lines between them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.exists = tokenizer.chat_template is not None
        self._frames: dict[object, str] = {}
        self._takes_thoughts: bool | None = None
        self._takes_calls: Literal["object", "text", "none"] | None = None

    # --- turns -----------------------------------------------------------------------------

    def turn(self, message: RecordedMessage, *, trained: bool) -> Turn:
        """A recorded message in the form in which this template takes it."""
        fields: dict[str, Json] = {}
        if message.calls:
            fields["tool_calls"] = [self._call(call) for call in message.calls]
        if message.role == "tool" and message.call_id:
            fields["tool_call_id"] = message.call_id
        if message.role == "tool" and message.name:
            fields["name"] = message.name
        turn = replace(
            Turn.plain(message.role, message.text),
            extra=json.dumps(fields, ensure_ascii=False) if fields else "",
            trained=trained,
        )
        if message.reasoning is None:
            return turn
        if self._thoughts:
            return replace(turn, thought=_slotted(message.reasoning))
        return replace(turn, content=_inline(message))

    @property
    def _thoughts(self) -> bool:
        """Whether it writes the reasoning of a last message that is given in a field."""
        if self._takes_thoughts is None:
            asked = {"role": "user", "content": "a"}
            said = {"role": "assistant", "content": "b", "reasoning_content": _PLACE.format(0)}
            self._takes_thoughts = PLACES.search(self._tried([asked, said])) is not None
        return self._takes_thoughts

    def _call(self, call: ToolCall) -> dict[str, Json]:
        """A call as this template takes it; ModelError where it takes none."""
        if self._takes_calls is None:
            self._takes_calls = self._probed()
        if self._takes_calls == "none":
            raise ModelError("the model's chat template knows no tool calls")
        whole = self._takes_calls == "object" and call.arguments is not None
        arguments = dict(call.arguments or {}) if whole else call.raw
        return {
            "type": "function",
            "id": call.id,
            "function": {"name": call.name, "arguments": arguments},
        }

    def _probed(self) -> Literal["object", "text", "none"]:
        """Whether it wants the arguments of a call as an object, as JSON text, or no calls."""
        asked = {"role": "user", "content": "a"}
        forms: tuple[tuple[Literal["object", "text"], Json], ...] = (
            ("object", {"headrace": 1}),
            ("text", '{"headrace": 1}'),
        )
        for form, arguments in forms:
            function = {"name": "c", "arguments": arguments}
            call = {"type": "function", "id": "abcdefghi", "function": function}
            written = self._tried(
                [asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
            )
            if '"headrace"' in written:
                return form
        return "none"

    def _tried(self, conversation: list[dict[str, Json]]) -> str:
        try:
            return self._apply(conversation, generation=False, tools=())
        except _REFUSALS:
            return ""

    # --- frames ----------------------------------------------------------------------------

    def settled(
        self, turns: Sequence[Turn], *, generation: bool, tools: Tools = ()
    ) -> tuple[Turn, ...]:
        """The turns as the template takes them; ModelError where it does not.

        Where a template refuses or drops the system message, the first message carries it.
        """
        tries = [tuple(turns)]
        if turns[0].role == "system" and len(turns) > 1:
            system, first, *rest = turns
            text = f"{_filled(system.content, None)}\n\n{_filled(first.content, None)}"
            folded = replace(first, content=_slotted(text), answers=bool(text.strip()))
            tries.append((folded, *rest))
        refusals: list[ModelError] = []
        for candidate in tries:
            try:
                self.frame(candidate, generation=generation, tools=tools)
            except ModelError as error:
                refusals.append(error)
            else:
                return candidate
        raise refusals[-1]

    def frame(self, turns: Sequence[Turn], *, generation: bool, tools: Tools = ()) -> str:
        """The template's text with placeholders, numbered through all turns' slots.

        ModelError where the template refuses the turns, or leaves out an answer.
        """
        listed = json.dumps(tools, sort_keys=True) if tools else ""
        key = (tuple(turn.shape for turn in turns), generation, listed)
        if key not in self._frames:
            if len(self._frames) >= _CACHED:
                self._frames.clear()
            self._frames[key] = self._framed(turns, generation=generation, tools=tools)
        return self._frames[key]

    def text(self, turns: Sequence[Turn], *, generation: bool, tools: Tools = ()) -> str:
        """What the template writes for the turns as they are; ModelError where it refuses."""
        try:
            messages = [turn.message() for turn in turns]
            return self._apply(messages, generation=generation, tools=tools)
        except _REFUSALS as error:
            raise ModelError(f"the model's chat template refuses this text: {error}") from error

    def _framed(self, turns: Sequence[Turn], *, generation: bool, tools: Tools) -> str:
        placed: list[dict[str, Json]] = []
        needed: set[int] = set()
        count = 0
        for turn in turns:
            placed.append(turn.message(count))
            if turn.answers:
                needed.add(count + len(turn.content) // 2 - 1)
            count += len(turn.slots)
        try:
            frame = self._apply(placed, generation=generation, tools=tools)
        except _REFUSALS as error:
            raise ModelError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        shown = {int(number) for number in PLACES.findall(frame)}
        if not needed <= shown:
            raise ModelError("the model's chat template leaves out a message")
        return frame

    def _apply(self, messages: list[dict[str, Any]], *, generation: bool, tools: Tools) -> str:
        if not self.exists:
            return "\n\n".join(str(message["content"]) for message in messages)
        options: dict[str, Any] = {"tools": [dict(tool) for tool in tools]} if tools else {}
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation, **options
            )
        )


def _inline(message: RecordedMessage) -> tuple[str, ...]:
    """Text with its reasoning before it, as it was written, or else in the usual tags."""
    thought, answer = (message.reasoning or "").strip(), message.text.strip()
    written = message.inline
    if written is None:
        written = f"<think>\n{thought}\n</think>\n\n{answer}"
    opening = _OPENING.match(written)
    start = opening.end() if opening is not None and thought else 0
    cuts = [start, start + len(thought)] if thought else []
    if answer:
        stop = written.rindex(answer)
        cuts += [stop, stop + len(answer)]
    edges = [0, *cuts, len(written)]
    return tuple(written[low:high] for low, high in pairwise(edges))
