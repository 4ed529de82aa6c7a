"""Messages to token ids, and ids back to text for people and verifiers.

The chat template is the only author of special tokens: whatever a task's text contains, its
characters stay text. What is decoded here is shown or judged, and never encoded again.

Knows a tokenizer by its shape only (`Tokenizer`), so that nothing here loads torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from headrace.errors import ModelError
from headrace.types import Ids, ImagePart, Message

__all__ = ["Renderer", "Tokenizer"]

logger = logging.getLogger(__name__)

_PLACE = "\ue000{}\ue001"
_PLACES = re.compile("\ue000([0-9]+)\ue001")


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs."""

    chat_template: Any

    @property
    def bos_token_id(self) -> Any: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: Any, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


class Renderer:
    """Renders prompts for one model and decodes what it wrote.

    `end_ids` are the model's end tokens. A model without a chat template gets the plain text
    of the messages, blank lines between them; that is said once, when the renderer is made.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        self._special = frozenset(
            int(id) for id, token in tokenizer.added_tokens_decoder.items() if token.special
        )
        self._bos = self._leading_bos()
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
        turns = [(message.role, message.text) for message in messages]
        if system is not None and turns[0][0] != "system":
            turns.insert(0, ("system", system))
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

    def _templated_ids(self, turns: list[tuple[str, str]]) -> list[int]:
        """Whole-text encoding, unless a message's text brought in a special token.

        The test compares with a skeleton in which every message is an inert placeholder: both
        must hold the same special tokens. If not, the skeleton's own pieces are encoded with
        special tokens and the messages without.
        """
        skeleton, cores = [], []
        for role, content in turns:
            core = content.strip()
            before, _, after = content.partition(core) if core else (content, "", "")
            skeleton.append((role, before + (_PLACE.format(len(cores)) if core else "") + after))
            cores.append(core)
        frame = self._render(skeleton)
        whole = self._encode(self._render(turns))
        if self._specials(whole) == self._specials(self._encode(frame)):
            return whole
        pieces = _PLACES.split(frame)
        ids: list[int] = []
        for position, piece in enumerate(pieces):
            if position % 2:
                ids += self._encode(cores[int(piece)], as_text=True)
            else:
                ids += self._encode(piece)
        if self._specials(ids) != self._specials(self._encode(frame)):
            raise ModelError("this tokenizer cannot keep special tokens in a task's text as text")
        return ids

    def _plain_ids(self, turns: list[tuple[str, str]]) -> list[int]:
        return self._encode("\n\n".join(content for _, content in turns), as_text=True)

    def _render(self, turns: list[tuple[str, str]]) -> str:
        try:
            return self._apply(turns)
        except TemplateError as refusal:
            if turns[0][0] != "system" or len(turns) < 2:
                raise ModelError(
                    f"the chat template refuses these messages: {refusal}"
                ) from refusal
        (_, system), (role, first), *rest = turns
        try:
            return self._apply([(role, f"{system}\n\n{first}"), *rest])
        except TemplateError as refusal:
            raise ModelError(f"the chat template refuses these messages: {refusal}") from refusal

    def _apply(self, turns: list[tuple[str, str]]) -> str:
        conversation = [{"role": role, "content": content} for role, content in turns]
        return str(
            self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True
            )
        )

    def _encode(self, text: str, *, as_text: bool = False) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=as_text)
        return [int(id) for id in ids]

    def _specials(self, ids: list[int]) -> list[int]:
        return [id for id in ids if id in self._special]

    def _leading_bos(self) -> int | None:
        """The BOS that this tokenizer puts before a text of its own accord, if it does."""
        bos = self._tokenizer.bos_token_id
        ids = self._tokenizer.encode("a", add_special_tokens=True)
        return int(bos) if bos is not None and len(ids) and int(ids[0]) == int(bos) else None

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_token_id
        if bos is not None:
            while len(ids) > 1 and ids[0] == ids[1] == bos:
                ids = ids[1:]
        if self._bos is not None and ids[:1] != [self._bos]:
            return [self._bos, *ids]
        return ids
