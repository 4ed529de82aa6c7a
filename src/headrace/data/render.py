"""Messages to token ids, and ids back to text for people and verifiers.

The chat template is the only author of special tokens: whatever a task's text contains, its
characters stay text. What is decoded here is shown or judged, and never encoded again.

Knows a tokenizer by its shape only (`Tokenizer`), so that nothing here loads torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from headrace.errors import ModelError
from headrace.types import Ids, ImagePart, Message

__all__ = ["Renderer", "Tokenizer"]

logger = logging.getLogger(__name__)

_PLACE = "headrace{}message"
_PLACES = re.compile("headrace([0-9]+)message")


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs."""

    chat_template: Any

    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: Any, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message as the template sees it."""

    role: str
    content: str

    def placed(self, number: int) -> _Turn:
        """The same with a placeholder for its text; space around the text stays."""
        core = self.content.strip()
        return (
            _Turn(self.role, self.content.replace(core, _PLACE.format(number), 1)) if core else self
        )


class Renderer:
    """Renders prompts for one model and decodes what it wrote.

    `end_ids` are the model's end tokens. A model without a chat template gets the plain text
    of the messages, blank lines between them; that is said once, when the renderer is made.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        added = tokenizer.added_tokens_decoder.items()
        self._added = {int(id): str(token.content) for id, token in added}
        self._controls = self._end_ids | {int(id) for id, token in added if token.special}
        named = tokenizer.special_tokens_map
        ids = {spelling: id for id, spelling in self._added.items()}
        self._bos = ids.get(str(named.get("bos_token")))
        self._unknown = ids.get(str(named.get("unk_token")))
        self._adds_bos = self._encode("a", add_special_tokens=True)[:1] == [self._bos]
        self._templated = tokenizer.chat_template is not None
        if not self._templated:
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
        turns = [_Turn(message.role, message.text) for message in messages]
        if system is not None and turns[0].role != "system":
            turns.insert(0, _Turn("system", system))
        ids = self._templated_ids(turns) if self._templated else self._plain_ids(turns)
        return np.asarray(self._with_one_bos(ids), dtype=np.int32)

    def text(self, ids: Ids) -> str:
        """What was written, for people and verifiers: special tokens leave nothing behind."""
        kept = ids[:-1] if len(ids) and int(ids[-1]) in self._end_ids else ids
        return str(
            self._tokenizer.decode(
                kept.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _templated_ids(self, turns: list[_Turn]) -> list[int]:
        """Whole-text encoding, unless a message's text brought in a control token.

        The test compares with the frame, in which an inert placeholder stands for every
        message: both must hold the same control tokens. If not, the frame's own pieces and the
        messages are encoded apart, the latter as text.
        """
        turns, frame = self._framed(turns)
        pieces = _PLACES.split(frame)
        own = [self._encode(piece) for piece in pieces[::2]]
        frame_ids = [id for ids in own for id in ids]
        controls = self._controls | (self._added.keys() & set(frame_ids))
        whole = self._encode(self._render(turns))
        if _only(controls, whole) == _only(controls, frame_ids):
            return whole
        ids = own[0]
        for number, after in zip(pieces[1::2], own[1:], strict=True):
            ids = [*ids, *self._as_text(turns[int(number)].content.strip(), controls), *after]
        return ids

    def _framed(self, turns: list[_Turn]) -> tuple[list[_Turn], str]:
        """The turns as the template takes them, and its text around their placeholders.

        Where a template refuses or drops the system message, the first message carries it.
        """
        tries = [turns]
        if turns[0].role == "system" and len(turns) > 1:
            system, first, *rest = turns
            folded = _Turn(first.role, f"{system.content}\n\n{first.content}")
            tries.append([folded, *rest])
        refusal: TemplateError | None = None
        for candidate in tries:
            try:
                frame = self._apply([turn.placed(n) for n, turn in enumerate(candidate)])
            except TemplateError as error:
                refusal = error
                continue
            shown = {int(number) for number in _PLACES.findall(frame)}
            if shown == {n for n, turn in enumerate(candidate) if turn.content.strip()}:
                return candidate, frame
        reason = f"refuses these messages: {refusal}" if refusal else "leaves out a message"
        raise ModelError(f"the model's chat template {reason}")

    def _as_text(self, text: str, controls: Set[int]) -> list[int]:
        """The ids of `text` without any control token, whatever it spells.

        A tokenizer that will not leave a spelling alone gets it cut after its first character.
        The unknown token is no harm where it stands for a character outside the vocabulary.
        """
        ids = self._encode(text, split_special_tokens=True)
        if _only(controls, ids):
            spellings = "|".join(re.escape(self._added[id]) for id in controls & self._added.keys())
            cuts = [found.start() + 1 for found in re.finditer(f"(?={spellings})", text)]
            fragments = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
            encoded = [self._encode(part, split_special_tokens=True) for part in fragments]
            ids = [id for part in encoded for id in part]
        if set(_only(controls, ids)) <= {self._unknown}:
            return ids
        raise ModelError("this tokenizer cannot keep a special token in a task's text as text")

    def _plain_ids(self, turns: list[_Turn]) -> list[int]:
        text = "\n\n".join(turn.content for turn in turns)
        return self._as_text(text, self._controls)

    def _render(self, turns: list[_Turn]) -> str:
        try:
            return self._apply(turns)
        except TemplateError as error:
            raise ModelError(f"the model's chat template refuses this text: {error}") from error

    def _apply(self, turns: list[_Turn]) -> str:
        conversation = [{"role": turn.role, "content": turn.content} for turn in turns]
        return str(
            self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True
            )
        )

    def _encode(self, text: str, **options: bool) -> list[int]:
        ids = self._tokenizer.encode(text, **{"add_special_tokens": False, **options})
        return [int(id) for id in ids]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """The ids with a single BOS in front: the template's, or the tokenizer's own."""
        if self._bos is None:
            return ids
        while ids[:2] == [self._bos, self._bos]:
            ids = ids[1:]
        return [self._bos, *ids] if self._adds_bos and ids[:1] != [self._bos] else ids


def _only(kept: Set[int], ids: Sequence[int]) -> list[int]:
    return [id for id in ids if id in kept]
