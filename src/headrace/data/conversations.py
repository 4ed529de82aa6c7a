"""A raw row as a conversation or a preference, whatever its shape; decided row by row.

Shapes: ShareGPT and OpenAI messages, Alpaca, prompt and completion, question and answer,
preferences (explicit prompt, implicit prompt, full lists, transcripts), any of them with a label
of good or bad. What does not fit raises `Unfit`. Knows neither files nor tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.data.messages import (
    RecordedMessage,
    Unfit,
    is_absent,
    message_of,
    paired,
    tools_of,
)
from headrace.types import Json, content_hash

__all__ = ["Conversation", "PreferenceRow", "RecordedMessage", "Unfit", "understand"]

_LISTS = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "data")
_PROMPTS = ("prompt", "question", "query", "problem")
_COMPLETIONS = ("completion", "response", "answer", "output", "solution")
_SYSTEMS = ("system", "system_prompt")
_LABELS = ("label", "kto_tag", "desirable")
_SCORES = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen_rating", "rejected_rating"),
    ("chosen-rating", "rejected-rating"),
)
_YES = frozenset({"true", "1", "1.0", "yes", "good", "desirable", "thumbs_up"})
_NO = frozenset({"false", "0", "0.0", "-1", "-1.0", "no", "bad", "undesirable", "thumbs_down"})
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_SPOKEN = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in order; `label` says whether the last is good or bad, None where nobody did."""

    messages: tuple[RecordedMessage, ...]
    shape: str
    tools: tuple[Mapping[str, Json], ...] = ()
    label: bool | None = None

    @property
    def key(self) -> str:
        """Content hash of what is said, whatever the file, its shape and the model."""
        return _key(self.messages, self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow:
    """Two ways to go on after `prompt`, of which `chosen` is better: by `margin`, 0 unknown."""

    prompt: tuple[RecordedMessage, ...]
    chosen: tuple[RecordedMessage, ...]
    rejected: tuple[RecordedMessage, ...]
    shape: str
    margin: float = 0.0
    tools: tuple[Mapping[str, Json], ...] = ()

    @property
    def key(self) -> str:
        """Content hash of the prompt and both sides."""
        sides = (_key(side, ()) for side in (self.prompt, self.chosen, self.rejected))
        return content_hash([*sides, _key((), self.tools)])


def _key(messages: Sequence[RecordedMessage], tools: Sequence[Mapping[str, Json]]) -> str:
    spelled = json.dumps(tools, sort_keys=True) if tools else ""
    return content_hash([[message.said for message in messages], spelled])


def understand(
    value: Mapping[str, Json], *, columnar: bool = False
) -> Conversation | PreferenceRow:
    """What a row holds; Unfit with a reason where that cannot be said.

    `columnar`: it comes from a container that fills absent keys with null.

    >>> understand({"instruction": "Add.", "input": "2 2", "output": "4"}).messages[0].text
    'Add.\\n2 2'
    """
    row = {key: cell for key, cell in value.items() if not is_absent(cell)}
    if any(row.get(key) for key in _MEDIA):
        raise Unfit("images, audio and video are not rendered")
    tools = tools_of(row.get("tools", row.get("functions")), columnar=columnar)
    if "chosen" in value or "rejected" in value:
        return _preference(row, tools, columnar)
    messages, shape = _conversation(row, columnar)
    return Conversation(
        messages=paired(_with_system(messages, row)), shape=shape, tools=tools, label=_label(row)
    )


# --- conversations -------------------------------------------------------------------------


def _conversation(row: Mapping[str, Json], columnar: bool) -> tuple[list[RecordedMessage], str]:
    if (turns := _turns(row)) is not None:
        messages = _messages(turns, columnar)
        if not messages:
            raise Unfit("no turns")
        named = any(isinstance(turn, dict) and "from" in turn for turn in turns)
        return messages, "sharegpt" if named else "messages"
    if "instruction" in row:
        answer = _first(row, _COMPLETIONS)
        if answer is None:
            raise Unfit("an instruction without an answer")
        return [*_alpaca(row), *_side(answer, "assistant", columnar)], "alpaca"
    asked, answer = _first(row, _PROMPTS), _first(row, _COMPLETIONS)
    if asked is None or answer is None:
        raise _unknown(row, asked)
    shape = "prompt-completion" if "prompt" in row else "question-answer"
    return [*_side(asked, "user", columnar), *_side(answer, "assistant", columnar)], shape


def _unknown(row: Mapping[str, Json], asked: Json) -> Unfit:
    keys = ", ".join(map(str, row))
    if "input_ids" in row:
        return Unfit("token ids of an unknown tokenizer", keys)
    if asked is not None:
        return Unfit("a prompt without an answer", keys)
    return Unfit("no known shape", keys)


def _turns(row: Mapping[str, Json]) -> list[Json] | None:
    """The list of turns, also where a table holds it as the text of one."""
    for key in _LISTS:
        turns = row.get(key)
        if isinstance(turns, str) and turns.lstrip().startswith("["):
            turns = _listed(turns)
        if isinstance(turns, list):
            return cast("list[Json]", turns)
    return None


def _messages(turns: Sequence[Json], columnar: bool) -> list[RecordedMessage]:
    """The messages of a list of turns; bare texts are the user's and the assistant's in turn."""
    if turns and all(isinstance(turn, str) for turn in turns):
        return [
            RecordedMessage.of("assistant" if number % 2 else "user", turn)
            for number, turn in enumerate(turns)
        ]
    return [message_of(turn, columnar=columnar) for turn in turns]


def _alpaca(row: Mapping[str, Json]) -> list[RecordedMessage]:
    """History, then the instruction and its input on a line of its own."""
    messages: list[RecordedMessage] = []
    history = row.get("history", [])
    if isinstance(history, str):
        history = _listed(history) if history.strip() else []
    for pair in history if isinstance(history, list) else []:
        if not (
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
        ):
            raise Unfit("a history that is no list of pairs", repr(pair))
        messages += [RecordedMessage.of("user", pair[0]), RecordedMessage.of("assistant", pair[1])]
    given = row.get("input", row.get("context", ""))
    asked = [text for text in (row["instruction"], given) if text]
    if not asked or not all(isinstance(text, str) for text in asked):
        raise Unfit("an instruction that is no text", repr(row["instruction"]))
    return [*messages, RecordedMessage.of("user", "\n".join(asked))]


def _side(value: Json, role: str, columnar: bool) -> list[RecordedMessage]:
    """The messages that a prompt, an answer or a side of a pair is: text, one message, a list."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        value = _listed(value)
    if isinstance(value, str):
        if role == "assistant" and not value.strip():
            raise Unfit("an assistant message that says nothing")
        return [RecordedMessage.of("assistant" if role == "assistant" else "user", value)]
    return _messages(value if isinstance(value, list) else [value], columnar)


def _listed(text: str) -> Json:
    """The list that a text spells, or the text where it spells none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _with_system(
    messages: Sequence[RecordedMessage], row: Mapping[str, Json]
) -> list[RecordedMessage]:
    """The messages behind the system text of a column of its own; a system message wins."""
    system = _first(row, _SYSTEMS)
    if isinstance(system, str) and system.strip() and messages[0].role != "system":
        return [RecordedMessage.of("system", system), *messages]
    return list(messages)


def _label(row: Mapping[str, Json]) -> bool | None:
    value = _first(row, _LABELS)
    if value is None:
        return None
    spelled = str(value).strip().lower()
    if spelled not in _YES | _NO:
        raise Unfit("a label that is neither good nor bad", repr(value))
    return spelled in _YES


def _first(row: Mapping[str, Json], keys: Sequence[str]) -> Json:
    return next((row[key] for key in keys if key in row), None)


# --- preferences ---------------------------------------------------------------------------


def _preference(
    row: Mapping[str, Json], tools: tuple[Mapping[str, Json], ...], columnar: bool
) -> PreferenceRow:
    chosen, rejected = (_continuation(row, side, columnar) for side in ("chosen", "rejected"))
    asked = _asked(row, columnar)
    shared = _common(chosen, rejected)
    whole = bool(asked) and _holds(chosen[:shared], asked)
    prompt = chosen[:shared] if whole else [*asked, *chosen[:shared]]
    chosen, rejected = chosen[shared:], rejected[shared:]
    if not chosen and not rejected:
        raise Unfit("both sides say the same")
    for side in (chosen, rejected):
        if not side or side[0].role != "assistant" or side[-1].role != "assistant":
            raise Unfit("a side that is not the assistant's answer")
    if not any(message.role == "user" for message in prompt):
        raise Unfit("a preference without a prompt")
    prompt = _with_system(prompt, row)
    shape = "full lists" if whole else "prompt" if asked else "implicit prompt"
    return PreferenceRow(
        prompt=paired(prompt),
        chosen=paired(chosen),
        rejected=paired(rejected),
        shape=f"preference, {shape}",
        margin=_margin(row),
        tools=tools,
    )


def _continuation(row: Mapping[str, Json], side: str, columnar: bool) -> list[RecordedMessage]:
    value = row.get(side)
    if value is None or value == "" or value == []:
        raise Unfit("a side is missing", side)
    if isinstance(value, str) and len(_SPOKEN.findall(value)) > 1:
        return _transcript(value)
    return _side(value, "assistant", columnar)


def _transcript(text: str) -> list[RecordedMessage]:
    """The messages of a text in which "Human:" and "Assistant:" begin paragraphs."""
    before, *spoken = _SPOKEN.split(text)
    if before.strip():
        raise Unfit("a transcript with text before its first speaker", before[:80])
    return [
        RecordedMessage.of("user" if who == "Human" else "assistant", said.strip())
        for who, said in zip(spoken[::2], spoken[1::2], strict=True)
    ]


def _asked(row: Mapping[str, Json], columnar: bool) -> list[RecordedMessage]:
    """The prompt that stands beside the two sides, if any."""
    asked = _first(row, _PROMPTS)
    if asked is not None:
        if isinstance(asked, str) and len(_SPOKEN.findall(asked)) > 0:
            return [message for message in _transcript(asked) if message.text]
        return _side(asked, "user", columnar)
    if "instruction" in row:
        return _alpaca(row)
    turns = _turns(row)
    return [] if turns is None else _messages(turns, columnar)


def _common(one: Sequence[RecordedMessage], other: Sequence[RecordedMessage]) -> int:
    """How many messages two lists begin with in common."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine.said != theirs.said:
            break
        count += 1
    return count


def _holds(shared: Sequence[RecordedMessage], asked: Sequence[RecordedMessage]) -> bool:
    """Whether what both sides begin with is the prompt, or ends with it."""
    wanted = [message.said for message in asked]
    said = [message.said for message in shared]
    return bool(said) and (said[: len(wanted)] == wanted or said[-len(wanted) :] == wanted)


def _margin(row: Mapping[str, Json]) -> float:
    """By how much the chosen side is better, 0 where the row does not say."""
    if "margin" in row:
        margin = _number(row["margin"])
    else:
        scores = [pair for pair in _SCORES if all(key in row for key in pair)]
        if not scores:
            return 0.0
        margin = _number(row[scores[0][0]]) - _number(row[scores[0][1]])
    if margin == 0:
        raise Unfit("a tie")
    if margin < 0:
        raise Unfit("the rejected side has the higher score", f"margin {margin:g}")
    return margin


def _number(value: Json) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise Unfit("a margin that is no number", repr(value))
    return number
