"""Reading JSON that a policy wrote: as the standard says (RFC 8259, I-JSON), and bounded.

Python's own reader lets through what other readers refuse or read differently: duplicate keys,
NaN, numbers beyond every float, half of a surrogate pair. Here these are errors. May be known
by every verifier; knows none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

from headrace.types import Json

__all__ = ["MAX_CHARACTERS", "MAX_DEPTH", "Malformed", "checked", "last_json", "read_json"]

MAX_CHARACTERS = 100_000
MAX_DEPTH = 64
_ATTEMPTS = 100
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPENING = re.compile(r"[\[{]")


class Malformed(ValueError):
    """A text is no document of its format; `trick` says that it looks like a known trick."""

    def __init__(self, why: str, *, trick: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.trick = trick


def read_json(text: str) -> Json:
    """The value that `text` spells, space around it allowed; Malformed for anything else.

    Refused: duplicate keys, NaN and infinities (also as 1e999), lone surrogates, integers of
    more than 4300 digits, more than MAX_DEPTH levels or MAX_CHARACTERS characters.

    >>> read_json('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    """
    if len(text) > MAX_CHARACTERS:
        raise Malformed(f"{len(text)} characters, more than {MAX_CHARACTERS}")
    try:
        return checked(_DECODER.decode(text))
    except Malformed:
        raise
    except json.JSONDecodeError as error:
        raise Malformed(f"no JSON: {error.msg} at {error.lineno}:{error.colno}") from None
    except RecursionError:
        raise Malformed(f"nested more than {MAX_DEPTH} levels deep") from None
    except ValueError:
        raise Malformed("an integer too long to read") from None


def last_json(text: str) -> str | None:
    """The last object or array at the top level of a text that holds other things too.

    The text is read from left to right, and a value that began inside another is part of it.
    None if there is none, if more than 100 brackets begin nothing, or in a text that is longer
    than MAX_CHARACTERS.

    >>> last_json('first {"a": 1}, or rather {"a": {"b": 2}}.')
    '{"a": {"b": 2}}'
    """
    found, position, failures = None, 0, 0
    if len(text) > MAX_CHARACTERS:
        return None
    while match := _OPENING.search(text, position):
        try:
            _, position = _SCANNER.raw_decode(text, match.start())
            found = text[match.start() : position]
        except (ValueError, RecursionError):
            position, failures = match.end(), failures + 1
            if failures > _ATTEMPTS:
                return None
    return found


def checked(value: Json) -> Json:
    """`value` itself, if it is no deeper than MAX_DEPTH and its strings can be written."""
    for level, item in _walk(value):
        if level > MAX_DEPTH:
            raise Malformed(f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(item, str) and _SURROGATE.search(item):
            raise Malformed("a lone surrogate")
        if isinstance(item, float) and not math.isfinite(item):
            raise Malformed("a number that is not finite", trick=True)
    return value


def _walk(value: Json) -> Iterator[tuple[int, Json]]:
    """Every value and key inside, with its level; stops below the first level too many."""
    open_items: list[tuple[int, Json]] = [(0, value)]
    while open_items:
        level, item = open_items.pop()
        yield level, item
        if isinstance(item, dict):
            open_items += [(level, key) for key in item]
            open_items += [(level + 1, inner) for inner in item.values()]
        elif isinstance(item, list):
            open_items += [(level + 1, inner) for inner in item]


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Malformed(f"the key {twice[:80]!r} comes twice", trick=True)
    return found


def _constant(name: str) -> Json:
    raise Malformed(f"{name} is no JSON", trick=True)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_SCANNER = json.JSONDecoder()
"""Finds where a value ends; what it then is, `_DECODER` says."""
