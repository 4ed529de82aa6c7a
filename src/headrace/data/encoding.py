"""Text to token ids and back, where only the chat template may bring in special tokens.

`Encoder` is the tokenizer as rendering needs it. Knows a tokenizer by its shape only
(`Tokenizer`), so that nothing here loads torch; knows no messages.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np

from headrace.errors import ModelError

__all__ = ["Encoder", "Piece", "Tokenizer", "same_text"]

_CACHED = 4096


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs."""

    chat_template: Any

    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def __call__(self, text: Any, **options: Any) -> Any: ...

    def encode(self, text: Any, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...

    def batch_decode(self, sequences: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text: the template's `literals` with what messages say (`texts`) between them.

    `text` is all of it.

    >>> Piece(("<u>", "</u>"), ("hi",)).text
    '<u>hi</u>'
    """

    literals: tuple[str, ...]
    texts: tuple[str, ...]
    text: str = field(init=False)

    def __post_init__(self) -> None:
        said = zip(self.texts, self.literals[1:], strict=True)
        whole = self.literals[0] + "".join([text + after for text, after in said])
        object.__setattr__(self, "text", whole)


class Encoder:
    """A tokenizer, its special tokens, and the end tokens (`end_ids`) of its model.

    `joins`: texts encoded one by one are the text of all (not so where the tokenizer puts a space
    before every text, as those of the SentencePiece kind do). Control tokens are those that must
    never come from a message: special tokens and end tokens, and whatever other added tokens a
    template writes by itself.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.end_ids = frozenset(end_ids)
        added = tokenizer.added_tokens_decoder.items()
        self._added = {int(id): str(token.content) for id, token in added}
        self.controls = self.end_ids | {int(id) for id, token in added if token.special}
        named = tokenizer.special_tokens_map
        ids = {spelling: id for id, spelling in self._added.items()}
        self._bos = ids.get(str(named.get("bos_token")))
        self._unknown = ids.get(str(named.get("unk_token")))
        eos = ids.get(str(named.get("eos_token")))
        self.end = eos if eos in self.end_ids else min(self.end_ids, default=None)
        self._adds_bos = self.encode("a", add_special_tokens=True)[:1] == [self._bos]
        self.joins = self.decode([*self.encode("x"), *self.encode("x")]) == "xx"
        self._literals: dict[str, list[int]] = {}
        self._spelled = _alternation(self._spelling(id) for id in self.controls)
        self._any_added = _alternation(self._added.values())

    def encode(self, text: str, **options: bool) -> list[int]:
        """The ids of a text; special tokens that it spells become those."""
        ids = self._tokenizer.encode(text, **{"add_special_tokens": False, **options})
        return [int(id) for id in ids]

    def encode_many(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """`encode` for many texts at once, by text."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        encoded = self._tokenizer(
            distinct,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return dict(zip(distinct, encoded["input_ids"], strict=True))

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_many([ids])[0]

    def decode_many(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The texts of sequences of ids, special tokens spelled out."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        rows = [np.asarray(ids, np.int64) for ids in sequences]
        return [str(text) for text in self._tokenizer.batch_decode(rows, **options)]

    def readable(self, ids: Sequence[int]) -> str:
        """The text for people and verifiers: special tokens leave nothing behind."""
        kept = ids[:-1] if len(ids) and ids[-1] in self.end_ids else ids
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(list(kept), **options))

    def with_one_bos(self, ids: list[int]) -> list[int]:
        """The ids with a single BOS in front: the template's, or the tokenizer's own."""
        if self._bos is None:
            return ids
        while ids[:2] == [self._bos, self._bos]:
            ids = ids[1:]
        return [self._bos, *ids] if self._adds_bos and ids[:1] != [self._bos] else ids

    def end_of_turn(self, literal: str) -> int | None:
        """Where the end token stops with which a template closes what stood before `literal`.

        None where the first special token in it, if any, is no end token.
        """
        found = self._spelled.search(literal)
        if found is None or self.encode(found.group())[:1] not in [[id] for id in self.end_ids]:
            return None
        return found.end()

    def spells_special(self, text: str) -> bool:
        """Whether a text spells any added token."""
        return self._any_added.search(text) is not None

    # --- pieces ----------------------------------------------------------------------------

    def pieces(
        self, pieces: Sequence[Piece], frame: str, known: Mapping[str, list[int]]
    ) -> list[list[int]]:
        """The ids of consecutive pieces of one text, what messages say encoded as text.

        `frame` is the template's text around all of them, `known` holds `encode` of texts that
        were encoded before. Each piece is encoded by itself, as whoever goes on writing after a
        prompt does; a tokenizer of which that changes the text encodes all of it, and must have
        a token end where a piece ends (ModelError otherwise).
        """
        own = self._of_literal(frame)
        controls = self.controls | (self._added.keys() & set(own))
        if self.joins:
            encoded = [self._looked_up(piece.text, known) for piece in pieces]
        else:
            encoded = self._prefixes([piece.text for piece in pieces], known)
        return [
            ids
            if _only(controls, ids) == self._expected(piece, controls)
            else self._apart(piece, controls)
            for piece, ids in zip(pieces, encoded, strict=True)
        ]

    def wanted(self, pieces: Sequence[Piece]) -> list[str]:
        """The texts that `pieces` will ask for."""
        texts = [piece.text for piece in pieces]
        return texts if self.joins else list(accumulate(texts))

    def whole(self, text: str, piece: Piece, frame: str) -> list[int]:
        """The ids of `text`, which the template made of `piece` in a way of its own; those of the
        piece, its literals and texts encoded apart, where a message brought in a control token."""
        controls = self.controls | (self._added.keys() & set(self._of_literal(frame)))
        ids = self.encode(text)
        if _only(controls, ids) == self._expected(piece, controls):
            return ids
        return self._apart(piece, controls)

    def _prefixes(self, texts: Sequence[str], known: Mapping[str, list[int]]) -> list[list[int]]:
        ends = list(accumulate(texts))
        whole = self._looked_up(ends[-1], known)
        cuts = [0]
        for end in ends[:-1]:
            ids = self._looked_up(end, known)
            if whole[: len(ids)] != ids:
                raise ModelError("this tokenizer joins what is said with the template around it")
            cuts.append(len(ids))
        return [whole[start:stop] for start, stop in pairwise([*cuts, len(whole)])]

    def _looked_up(self, text: str, known: Mapping[str, list[int]]) -> list[int]:
        return known[text] if text in known else self.encode(text)

    def _expected(self, piece: Piece, controls: Set[int]) -> list[int]:
        return [
            id for literal in piece.literals for id in _only(controls, self._of_literal(literal))
        ]

    def _of_literal(self, text: str) -> list[int]:
        if text not in self._literals:
            if len(self._literals) >= _CACHED:
                self._literals.clear()
            self._literals[text] = self.encode(text)
        return self._literals[text]

    def _apart(self, piece: Piece, controls: Set[int]) -> list[int]:
        """The literals and the texts of a piece encoded apart, the latter as text."""
        ids = list(self._of_literal(piece.literals[0]))
        for text, after in zip(piece.texts, piece.literals[1:], strict=True):
            ids += [*self._as_text(text, controls), *self._of_literal(after)]
        return ids

    def _as_text(self, text: str, controls: Set[int]) -> list[int]:
        """The ids of `text` without any control token, whatever it spells.

        A tokenizer that will not leave a spelling alone gets it cut after its first character.
        The unknown token is no harm where it stands for a character outside the vocabulary.
        """
        ids = self.encode(text, split_special_tokens=True)
        if _only(controls, ids):
            spellings = "|".join(re.escape(self._added[id]) for id in controls & self._added.keys())
            cuts = [found.start() + 1 for found in re.finditer(f"(?={spellings})", text)]
            fragments = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
            encoded = [self.encode(part, split_special_tokens=True) for part in fragments]
            ids = [id for part in encoded for id in part]
        if set(_only(controls, ids)) <= {self._unknown}:
            return ids
        raise ModelError("this tokenizer cannot keep a special token in a task's text as text")

    def _spelling(self, id: int) -> str:
        return self._added[id] if id in self._added else self.decode([id])


def same_text(one: str, other: str) -> bool:
    """Whether two texts are the same to a reader: up to space around them, and canonically equal
    characters, which tokenizers unify."""
    if one == other:
        return True
    return _normal(one) == _normal(other)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _alternation(spellings: Iterable[str]) -> re.Pattern[str]:
    """Any of the texts, the longest first; of none, a pattern that never matches."""
    ordered = sorted({text for text in spellings if text}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _only(kept: Set[int], ids: Sequence[int]) -> list[int]:
    return [id for id in ids if id in kept]
