"""One message of recorded data: every spelling of role, text, reasoning, calls and training flag
that is in use, as a `RecordedMessage`. What does not fit raises `Unfit`, which says why.

Known by the readers of rows (`conversations`) and by rendering; knows no files and no tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.types import Json, Role, ToolCall

__all__ = ["RecordedMessage", "Unfit", "is_absent", "message_of", "paired", "tools_of"]

_ROLE_KEYS = ("role", "from", "speaker")
_TEXT_KEYS = ("content", "value", "text")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_FLAG_KEYS = ("train", "training", "loss_mask", "loss", "weight")
_FLAGS = frozenset(_FLAG_KEYS)
_REASONING = frozenset(_REASONING_KEYS)
_MEDIA = ("image", "audio", "video", "file")
_CALL = "function_call"

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
    _CALL: "assistant",
}

_THOUGHTS = (
    re.compile(r"\s*<think>(?P<thought>.*?)</think>(?P<text>.*)", re.DOTALL),
    re.compile(
        r"\s*<\|begin_of_thought\|>(?P<thought>.*?)<\|end_of_thought\|>\s*"
        r"<\|begin_of_solution\|>(?P<text>.*?)<\|end_of_solution\|>\s*",
        re.DOTALL,
    ),
    re.compile(
        r"\s*<\|begin_of_thought\|>(?P<thought>.*?)<\|end_of_thought\|>(?P<text>.*)", re.DOTALL
    ),
    re.compile(r"(?P<thought>(?:(?!<think>).)*?)</think>(?P<text>.*)", re.DOTALL),
)


class Unfit(ValueError):
    """Data that cannot be understood: `reason` is one of a few, `detail` about this piece."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail[:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMessage:
    """A message as somebody recorded it.

    `text` is what was said, without the `reasoning` before it (None: there was none). Where the
    reasoning stood in the text, `inline` is all of it as it was written. `train` is the message's
    own word on whether it is learned from, None where it has none. `call_id` and `name` say whose
    result a tool message is.

    >>> RecordedMessage.of("assistant", "<think>2 + 2</think>4").reasoning
    '2 + 2'
    """

    role: Role
    text: str
    reasoning: str | None = None
    inline: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    train: bool | None = None

    @classmethod
    def of(cls, role: Role, text: str, *, train: bool | None = None) -> RecordedMessage:
        """A message of that text, with the reasoning that an assistant's text holds set apart."""
        return _thinking(cls(role=role, text=text, train=train))

    @property
    def said(self) -> Json:
        """What it says, as JSON to compare and to hash: no flags, no ids."""
        calls = [[call.name, call.raw] for call in self.calls]
        return [self.role, self.text, self.reasoning, calls]


def is_absent(value: Json) -> bool:
    """Whether columns mean "nothing" by it: null, NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def message_of(raw: Json, *, columnar: bool = False) -> RecordedMessage:
    """The message that `raw` spells; Unfit otherwise.

    `columnar`: it comes from a container that fills absent keys with null, so that nulls inside
    arguments mean nothing.
    """
    if not isinstance(raw, dict):
        raise Unfit("a message that is no object", repr(raw))
    fields = {key: value for key, value in raw.items() if not is_absent(value)}
    named = next((fields[key] for key in _ROLE_KEYS if key in fields), None)
    if named is None:
        raise Unfit("a message without a role", ", ".join(map(str, fields)))
    spelled = str(named).strip().lower()
    role = _ROLES.get(spelled)
    if role is None:
        raise Unfit("unknown role", str(named))
    content = next((fields[key] for key in _TEXT_KEYS if key in fields), "")
    text, thought, part_flag = _content(content)
    calls = _calls(fields, columnar=columnar)
    if spelled == _CALL:
        calls, text = (*calls, _call(_decoded(text, "a tool call"), columnar=columnar)), ""
    if not _REASONING.isdisjoint(fields):
        thought = next((str(fields[key]) for key in _REASONING_KEYS if fields.get(key)), thought)
    flag = _flag(fields)
    message = RecordedMessage(
        role=role,
        text=text,
        reasoning=thought if role == "assistant" else None,
        calls=calls if role == "assistant" else (),
        call_id=_optional(fields.get("tool_call_id")),
        name=_optional(fields.get("name")),
        train=part_flag if flag is None else flag,
    )
    message = _thinking(message) if message.reasoning is None else message
    if role == "assistant" and not (message.text.strip() or calls):
        raise Unfit("an assistant message that says nothing")
    return message


def paired(messages: Sequence[RecordedMessage]) -> tuple[RecordedMessage, ...]:
    """The messages with each tool result bound to its call: by id, else by order.

    Unfit for a result that names a call nobody made.
    """
    open_calls: list[ToolCall] = []
    bound: list[RecordedMessage] = []
    for message in messages:
        if message.role == "assistant":
            open_calls = list(message.calls)
        elif message.role == "tool" and open_calls:
            wanted = message.call_id or open_calls[0].id
            call = next((call for call in open_calls if call.id == wanted), None)
            if call is None:
                if any(call.id for call in open_calls):
                    raise Unfit("a tool result without its call", str(message.call_id))
                call = open_calls[0]
            open_calls.remove(call)
            message = replace(
                message, call_id=message.call_id or call.id or None, name=message.name or call.name
            )
        elif message.role == "tool" and message.call_id and bound and bound[-1].role == "tool":
            raise Unfit("a tool result without its call", message.call_id)
        bound.append(message)
    return tuple(bound)


def tools_of(value: Json, *, columnar: bool = False) -> tuple[Mapping[str, Json], ...]:
    """Tools in any spelling (list, one object, JSON text, "null", "", NaN) as function objects."""
    if is_absent(value) or (isinstance(value, str) and value.strip() in ("", "null", "NaN")):
        return ()
    if isinstance(value, str):
        value = _decoded(value, "tools")
        if value is None:
            return ()
    tools = [value] if isinstance(value, dict) else value
    if not isinstance(tools, list):
        raise Unfit("tools that are no list", repr(value))
    return tuple(_tool(_present(tool) if columnar else tool) for tool in tools)


def _tool(tool: Json) -> Mapping[str, Json]:
    if isinstance(tool, str):
        tool = _decoded(tool, "tools")
    if not isinstance(tool, dict):
        raise Unfit("tools that are no objects", repr(tool))
    if isinstance(tool.get("function"), dict):
        return {"type": "function", **tool}
    if "name" not in tool:
        raise Unfit("a tool without a name", ", ".join(map(str, tool)))
    return {"type": "function", "function": tool}


# --- what a message says -------------------------------------------------------------------


def _content(content: Json) -> tuple[str, str | None, bool | None]:
    """Text, reasoning and training flag of a content: text, or a list of parts."""
    if isinstance(content, str):
        return content, None, None
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list):
        raise Unfit("content that is no text", repr(content))
    texts: list[str] = []
    thoughts: list[str] = []
    flags: set[bool | None] = set()
    for part in parts:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, dict):
            raise Unfit("content that is no text", repr(part))
        fields = {key: value for key, value in part.items() if not is_absent(value)}
        kind = str(fields.get("type", "text"))
        if any(medium in kind for medium in _MEDIA):
            raise Unfit("images, audio and video are not rendered", kind)
        text = next((fields[key] for key in ("text", "thinking", "content") if key in fields), None)
        if not isinstance(text, str):
            raise Unfit("content that is no text", kind)
        (thoughts if kind in ("thinking", "reasoning") else texts).append(text)
        flags.add(_flag(fields))
    if len(flags) > 1:
        raise Unfit("parts of one message with different training flags")
    thought = "".join(thoughts) if thoughts else None
    return "".join(texts), thought, flags.pop() if flags else None


def _thinking(message: RecordedMessage) -> RecordedMessage:
    """The same with the reasoning that its text begins with set apart."""
    if message.role != "assistant":
        return message
    marked = "</think>" in message.text or "<|end_of_thought|>" in message.text
    for pattern in _THOUGHTS if marked else ():
        if found := pattern.fullmatch(message.text):
            return replace(
                message,
                text=found["text"].strip(),
                reasoning=found["thought"].strip(),
                inline=message.text,
            )
    return message


def _flag(fields: Mapping[str, Json]) -> bool | None:
    if fields.get("train_detail") or fields.get("training_detail"):
        raise Unfit("training flags for pieces of a message")
    if _FLAGS.isdisjoint(fields):
        return None
    for key in _FLAG_KEYS:
        value = fields.get(key)
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
        if value is not None:
            raise Unfit("a training flag that is neither yes nor no", f"{key} {value!r}")
    return None


# --- calls ---------------------------------------------------------------------------------


def _calls(fields: Mapping[str, Json], *, columnar: bool) -> tuple[ToolCall, ...]:
    if "tool_calls" not in fields and _CALL not in fields:
        return ()
    calls = fields.get("tool_calls") or []
    if isinstance(calls, str):
        calls = _decoded(calls, "tool calls") or []
    if not isinstance(calls, list):
        raise Unfit("tool calls that are no list", repr(calls))
    legacy = fields.get(_CALL)
    return tuple(_call(call, columnar=columnar) for call in [*calls, *([legacy] if legacy else [])])


def _call(value: Json, *, columnar: bool) -> ToolCall:
    """A call, its arguments as an object or as the text of one (also one that was quoted twice)."""
    if not isinstance(value, dict):
        raise Unfit("a tool call that is no object", repr(value))
    function = value.get("function")
    fields = function if isinstance(function, dict) else value
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise Unfit("a tool call without a name", ", ".join(map(str, fields)))
    arguments = fields.get("arguments", fields.get("parameters"))
    if isinstance(arguments, str):
        raw, understood = arguments, _arguments(arguments)
    else:
        understood = {} if arguments is None else arguments
        understood = _present(understood) if columnar else understood
        raw = json.dumps(understood, ensure_ascii=False)
    return ToolCall(
        id=str(value.get("id") or ""),
        name=name,
        raw=raw,
        arguments=understood if isinstance(understood, dict) else None,
    )


def _arguments(text: str) -> Json:
    """What the text of arguments holds; None where it is no JSON (the call stays as written)."""
    value: Json = text
    for _ in range(2):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, str):
            return value
    return None


def _decoded(text: str, what: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"{what} that cannot be read as JSON", str(error)) from error


def _present(value: Json) -> Json:
    """The value without the keys that columns filled with null."""
    if isinstance(value, dict):
        return {key: _present(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_present(inner) for inner in value]
    return value


def _optional(value: Json) -> str | None:
    return None if value is None or value == "" else str(value)
