"""Messages to token ids, and ids back to text for people and verifiers.

The chat template is the only author of special tokens: whatever a task's text contains, its
characters stay text. What is decoded here is shown or judged, and never encoded again. A recorded
conversation has the very ids that playing it would have given: its prompt as `Renderer.prompt`
makes it, what the assistant wrote, the end token, and so on.

`encoding` knows the tokenizer, `template` the chat template; this puts them together.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from headrace.data.encoding import Encoder, Piece, Tokenizer, same_text
from headrace.data.messages import RecordedMessage
from headrace.data.template import PLACES, Template, Turn
from headrace.errors import ModelError
from headrace.types import Ids, ImagePart, Json, Mask, Message

__all__ = ["Rendered", "Renderer", "Talk", "Tokenizer", "TrainOn"]

logger = logging.getLogger(__name__)

TrainOn = Literal["assistant", "last", "all"]
Tools = Sequence[Mapping[str, Json]]

_CACHED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation to be rendered: which messages are learned from is said by `train_on`
    ("assistant", the "last" assistant's, "all"), and before it by a message's own flag."""

    messages: tuple[RecordedMessage, ...]
    train_on: TrainOn = "assistant"
    system: str | None = None
    tools: tuple[Mapping[str, Json], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A conversation in tokens: `ids` [n], `trainable` [n], never at index 0.

    Trainable is what the assistant writes, the end token of the turn included and the header that
    asks for it not. `turn` None: all of the conversation. Else the template writes earlier turns
    otherwise than they were written (it drops their reasoning, say), so that every one that is
    learned from needs ids of its own: `turn` is the number of the message that these are for.
    """

    ids: Ids
    trainable: Mask
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of the frame: literals with slots between them, and whether it is learned from."""

    literals: tuple[str, ...]
    slots: tuple[int, ...]
    trained: bool
    inner: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """How conversations of one shape are cut: the frame, its stretches, whether the end token
    must be added behind the last."""

    frame: str
    stretches: tuple[_Stretch, ...]
    adds_end: bool


@dataclass(frozen=True, slots=True)
class _Draft:
    """A conversation in pieces of text, not encoded yet."""

    plan: _Plan
    pieces: tuple[Piece, ...]
    turn: int | None


@dataclass(slots=True)
class _Runs:
    """Trained runs of ids and the text each must decode to, of several conversations."""

    owners: list[int] = field(default_factory=list[int])
    ids: list[list[int]] = field(default_factory=list[list[int]])
    texts: list[str] = field(default_factory=list[str])


class _Broken(Exception):
    """A turn that is learned from does not stand in the template's text as it was asked for."""


class Renderer:
    """Renders prompts and conversations for one model and decodes what it wrote.

    `end_ids` are the model's end tokens. A model without a chat template gets the plain text
    of the messages, blank lines between them; that is said once, when the renderer is made.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        self._encoder = Encoder(tokenizer, end_ids)
        self._template = Template(tokenizer)
        self._plans: dict[object, _Plan | None] = {}
        if not self._template.exists:
            logger.warning("the model has no chat template: prompts are the plain text of messages")

    def prompt(self, messages: Sequence[Message], *, system: str | None) -> Ids:
        """The ids [n] of a prompt, up to where the assistant speaks; exactly one BOS, if any.

        `system` is used where the messages bring no system message of their own; a template
        that knows no system role gets it at the head of the first message. Text that spells
        a special token is encoded as text. Raises ModelError for images and for messages that
        the template refuses.
        """
        if not messages:
            raise ModelError("a prompt needs at least one message")
        if any(isinstance(part, ImagePart) for message in messages for part in message.parts):
            raise ModelError("this model reads text only, and the task has an image")
        turns = _with_system([Turn.of(message) for message in messages], system)
        turns = self._template.settled(turns, generation=True)
        text = self._template.text(turns, generation=True)
        plan = self._planned(turns, generation=True, tools=())
        pieces = _pieces(plan, turns)
        if "".join(piece.text for piece in pieces) == text:
            ids = [id for part in self._encoder.pieces(pieces, plan.frame, {}) for id in part]
        else:
            ids = self._encoder.whole(text, _piece(plan.frame, _slots(turns)), plan.frame)
        return np.asarray(self._encoder.with_one_bos(ids), dtype=np.int32)

    def text(self, ids: Ids) -> str:
        """What was written, for people and verifiers: special tokens leave nothing behind."""
        return self._encoder.readable(ids.tolist())

    def example(
        self,
        messages: Sequence[RecordedMessage],
        *,
        train_on: TrainOn,
        system: str | None = None,
        tools: Tools = (),
    ) -> tuple[Rendered, ...]:
        """A conversation in tokens: one `Rendered`, or one for each turn that is learned from.

        ModelError where the template refuses or changes what is said, or what is learned from
        does not decode to what was said.
        """
        talk = Talk(messages=tuple(messages), train_on=train_on, system=system, tools=tuple(tools))
        (result,) = self.examples([talk])
        if isinstance(result, ModelError):
            raise result
        return result

    def examples(self, talks: Sequence[Talk]) -> list[tuple[Rendered, ...] | ModelError]:
        """`example` for many at once, which is faster; what it would raise, in its place."""
        drafts: list[tuple[_Draft, ...] | ModelError] = []
        for talk in talks:
            try:
                drafts.append(self._drafts(talk))
            except ModelError as error:
                drafts.append(error)
        texts = (
            text
            for drafted in drafts
            if not isinstance(drafted, ModelError)
            for draft in drafted
            for text in self._encoder.wanted(draft.pieces)
        )
        known = self._encoder.encode_many(texts)
        runs = _Runs()
        results: list[tuple[Rendered, ...] | ModelError] = []
        for number, drafted in enumerate(drafts):
            if isinstance(drafted, ModelError):
                results.append(drafted)
                continue
            try:
                results.append(
                    tuple(self._rendered(draft, known, runs, number) for draft in drafted)
                )
            except ModelError as error:
                results.append(error)
        for number in self._misread(runs):
            results[number] = ModelError("what would be learned from is not what was said")
        return results

    # --- planning --------------------------------------------------------------------------

    def _drafts(self, talk: Talk) -> tuple[_Draft, ...]:
        """The conversation in pieces; where the template rewrites a turn, one for each turn."""
        if not talk.messages:
            raise ModelError("a conversation needs at least one message")
        self._refuse_specials(talk)
        flags = _flags(talk)
        turns = _with_system(
            [
                self._template.turn(message, trained=trained)
                for message, trained in zip(talk.messages, flags, strict=True)
            ],
            talk.system,
        )
        turns = self._template.settled(turns, generation=False, tools=talk.tools)
        moved = len(talk.messages) - len(turns)
        try:
            return (self._draft(turns, talk.tools, None),)
        except _Broken:
            trained = [number for number, turn in enumerate(turns) if turn.trained]
        if any(turns[number].role != "assistant" for number in trained):
            raise ModelError("the chat template rewrites earlier turns: train on the assistant")
        try:
            return tuple(
                self._draft(_only_last(turns[: number + 1]), talk.tools, number + moved)
                for number in trained
            )
        except _Broken as error:
            raise ModelError(
                "the model's chat template writes an answer otherwise than it asks for it"
            ) from error

    def _draft(self, turns: Sequence[Turn], tools: Tools, turn: int | None) -> _Draft:
        """`turns` in pieces; ModelError where the template makes something else of them."""
        plan = self._planned(turns, generation=False, tools=tools)
        pieces = _pieces(plan, turns)
        written = self._template.text(turns, generation=False, tools=tools)
        if "".join(piece.text for piece in pieces) != written:
            raise ModelError("the model's chat template changes what is said")
        return _Draft(plan, pieces, turn)

    def _planned(self, turns: Sequence[Turn], *, generation: bool, tools: Tools) -> _Plan:
        """The plan of this shape; _Broken where a trained turn is rewritten."""
        key = (tuple((turn.shape, turn.trained) for turn in turns), generation, _listed(tools))
        if key not in self._plans:
            if len(self._plans) >= _CACHED:
                self._plans.clear()
            try:
                self._plans[key] = self._plan(turns, generation=generation, tools=tools)
            except _Broken:
                self._plans[key] = None
        plan = self._plans[key]
        if plan is None:
            raise _Broken
        return plan

    def _plan(self, turns: Sequence[Turn], *, generation: bool, tools: Tools) -> _Plan:
        frame = self._template.frame(turns, generation=generation, tools=tools)
        places = _places(frame, turns)
        edges: dict[int, bool] = {}
        trained: list[tuple[int, int]] = []
        adds_end = asked = False
        for number, turn in enumerate(turns):
            place = places[number]
            if turn.role != "assistant":
                asked = asked or turn.role != "system"
                start = place[0] if turn.trained and place else None
            else:
                start = self._asked(turns[:number], frame, tools) if asked else None
            if start is None:
                if turn.trained and turn.role == "assistant":
                    raise _Broken
                continue
            after = place[1] if place else start
            following = [later[0] for later in places[number + 1 :] if later]
            literal = frame[after : min(following, default=len(frame))]
            end = self._encoder.end_of_turn(literal)
            if end is None and turn.trained and turn.role == "assistant":
                if number + 1 < len(turns):
                    raise _Broken
                adds_end = True
            stop = after + (end or 0)
            inner = turn.role != "assistant"
            edges |= {start: inner, stop: inner}
            if turn.trained:
                self._all_shown(turn, frame[start:stop], last=number + 1 == len(turns))
                trained.append((start, stop))
        return _Plan(frame, _stretches(frame, edges, trained), adds_end)

    def _asked(self, before: Sequence[Turn], frame: str, tools: Tools) -> int | None:
        """Where the prompt of the messages before ends in the frame; None if it is no prefix."""
        try:
            prompt = self._template.frame(before, generation=True, tools=tools)
        except ModelError:
            return None
        return len(prompt) if frame.startswith(prompt) else None

    @staticmethod
    def _all_shown(turn: Turn, written: str, *, last: bool) -> None:
        if len(set(PLACES.findall(written))) < len(turn.slots):
            if not last:
                raise _Broken
            raise ModelError("the model's chat template leaves out reasoning")

    def _refuse_specials(self, talk: Talk) -> None:
        """Calls and tools are written by the template, which would not keep them text."""
        spelled = [
            text
            for message in talk.messages
            for call in message.calls
            for text in (call.name, call.raw, call.id)
        ]
        spelled += [_listed(talk.tools)]
        if any(self._encoder.spells_special(text) for text in spelled):
            raise ModelError("a tool or a call spells a special token")

    # --- encoding --------------------------------------------------------------------------

    def _rendered(
        self, draft: _Draft, known: Mapping[str, list[int]], runs: _Runs, owner: int
    ) -> Rendered:
        plan = draft.plan
        encoded = self._encoder.pieces(draft.pieces, plan.frame, known)
        self._check_inner(draft, encoded)
        trained = [stretch.trained for stretch in plan.stretches]
        if any(trained):  # nothing after the last thing that is learned is of any use
            last = len(trained) - trained[::-1].index(True)
            encoded, trained = encoded[:last], trained[:last]
        for piece, ids, wanted in zip(draft.pieces, encoded, trained, strict=False):
            if wanted:
                runs.owners.append(owner)
                runs.ids.append(ids)
                runs.texts.append(piece.text)
        if plan.adds_end and self._encoder.end is not None:
            encoded, trained = [*encoded, [self._encoder.end]], [*trained, True]
        body = [id for ids in encoded for id in ids]
        mask = np.repeat(np.asarray(trained, np.bool_), [len(ids) for ids in encoded])
        ids = self._encoder.with_one_bos(body)
        shift = len(ids) - len(body)
        mask = np.concatenate([np.zeros(shift, np.bool_), mask]) if shift > 0 else mask[-shift:]
        mask[:1] = False
        return Rendered(ids=np.asarray(ids, np.int32), trainable=mask, turn=draft.turn)

    def _check_inner(self, draft: _Draft, encoded: Sequence[list[int]]) -> None:
        """ModelError where cutting a prompt at what its messages say has changed its ids."""
        stretches = draft.plan.stretches
        if not self._encoder.joins or not any(stretch.inner for stretch in stretches):
            return
        starts = {0, *(n for n, stretch in enumerate(stretches) if not stretch.inner)}
        for low, high in pairwise([*sorted(starts), len(stretches)]):
            apart = [id for ids in encoded[low:high] for id in ids]
            joined = _joined(draft.pieces[low:high])
            if high - low > 1 and self._encoder.pieces([joined], draft.plan.frame, {}) != [apart]:
                raise ModelError("this tokenizer joins what is said with the template around it")

    def _misread(self, runs: _Runs) -> set[int]:
        """The owners of runs that do not decode to what was said."""
        decoded = self._encoder.decode_many(runs.ids) if runs.ids else []
        return {
            owner
            for owner, read, text in zip(runs.owners, decoded, runs.texts, strict=True)
            if not same_text(read, text)
        }


def _listed(tools: Tools) -> str:
    return json.dumps(tools, sort_keys=True, ensure_ascii=False) if tools else ""


def _with_system(turns: list[Turn], system: str | None) -> tuple[Turn, ...]:
    if system is not None and turns[0].role != "system":
        return (Turn.plain("system", system), *turns)
    return tuple(turns)


def _flags(talk: Talk) -> list[bool]:
    """Which messages are learned from; never what an assistant says before anybody asked."""
    roles = [message.role for message in talk.messages]
    asked = next((n for n, role in enumerate(roles) if role in ("user", "tool")), len(roles))
    spoken = [n for n, role in enumerate(roles) if role == "assistant"]
    chosen = {
        "assistant": set(spoken),
        "last": set(spoken[-1:]),
        "all": set(range(len(talk.messages))),
    }[talk.train_on]
    return [
        (number in chosen if message.train is None else message.train)
        and not (message.role == "assistant" and number < asked)
        for number, message in enumerate(talk.messages)
    ]


def _only_last(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    return (*(replace(turn, trained=False) for turn in turns[:-1]), turns[-1])


def _slots(turns: Sequence[Turn]) -> list[str]:
    return [slot for turn in turns for slot in turn.slots]


def _places(frame: str, turns: Sequence[Turn]) -> list[tuple[int, int] | None]:
    """Where each turn's slots begin and end in the frame; None where it has none there."""
    counts = list(accumulate((len(turn.slots) for turn in turns), initial=0))
    spans: list[tuple[int, int] | None] = []
    found = [(int(place[1]), place.start(), place.end()) for place in PLACES.finditer(frame)]
    for low, high in pairwise(counts):
        mine = [(start, end) for number, start, end in found if low <= number < high]
        spans.append((mine[0][0], mine[-1][1]) if mine else None)
    return spans


def _stretches(
    frame: str, edges: Mapping[int, bool], trained: Sequence[tuple[int, int]]
) -> tuple[_Stretch, ...]:
    """The frame cut at `edges`, which say whether they are inside a prompt."""
    cuts = sorted({0, *edges} - {len(frame)})
    stretches: list[_Stretch] = []
    for low, high in pairwise([*cuts, len(frame)]):
        split = PLACES.split(frame[low:high])
        stretches.append(
            _Stretch(
                literals=tuple(split[::2]),
                slots=tuple(int(number) for number in split[1::2]),
                trained=any(start <= low and high <= stop for start, stop in trained),
                inner=edges.get(low, False),
            )
        )
    return tuple(stretches)


def _pieces(plan: _Plan, turns: Sequence[Turn]) -> tuple[Piece, ...]:
    said = _slots(turns)
    return tuple(
        Piece(stretch.literals, tuple(said[number] for number in stretch.slots))
        for stretch in plan.stretches
    )


def _piece(frame: str, said: Sequence[str]) -> Piece:
    """The whole frame as one piece."""
    split = PLACES.split(frame)
    return Piece(tuple(split[::2]), tuple(said[int(number)] for number in split[1::2]))


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Consecutive pieces as one."""
    literals, texts = list(pieces[0].literals), list(pieces[0].texts)
    for piece in pieces[1:]:
        literals[-1] += piece.literals[0]
        literals += piece.literals[1:]
        texts += piece.texts
    return Piece(tuple(literals), tuple(texts))
