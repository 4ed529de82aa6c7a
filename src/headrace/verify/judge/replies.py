"""Asking a judge and reading its reply: one object on the last line, with the mark it was given.

Whatever cannot be read so is no verdict, never a bad one. Known by the judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.types import Fault, Json
from headrace.verify.answers import without_thinking
from headrace.verify.judge.fencing import mark
from headrace.verify.judge.scribes import Declined, Scribe, Unreachable
from headrace.verify.strict_json import Malformed, read_json

__all__ = ["Heard", "Unheard", "consult", "last_line", "share"]

T = TypeVar("T")
_FENCE = ("```", "~~~")


@dataclass(frozen=True, slots=True)
class Heard(Generic[T]):
    """What a judge said, and its whole reply."""

    said: T
    reply: str


@dataclass(frozen=True, slots=True)
class Unheard:
    """No verdict: whose fault that is, why, and the reply if there was one."""

    fault: Fault
    why: str
    reply: str = ""


def consult(
    scribe: Scribe,
    material: Sequence[str],
    write: Callable[[str], str],
    read: Callable[[Mapping[str, Json]], T],
    *,
    max_tokens: int,
    tries: int,
) -> Heard[T] | Unheard:
    """What `scribe` replies to `write(mark)`, as `read` (raises Malformed) understands it.

    A reply that cannot be read is asked for again with another mark, `tries` times in all.
    Raises Refused.
    """
    unheard = Unheard("verifier", "never asked")
    for attempt in range(tries):
        nonce = mark(*material, attempt=attempt)
        try:
            reply = scribe.complete(write(nonce), max_tokens=max_tokens)
        except Unreachable as error:
            return Unheard("infrastructure", str(error))
        except Declined as error:
            return Unheard("verifier", str(error))
        try:
            return Heard(read(last_line(reply, nonce)), reply)
        except Malformed as error:
            unheard = Unheard("verifier", error.why, reply)
    return unheard


def last_line(reply: str, nonce: str) -> Mapping[str, Json]:
    """The object on the last line of a reply, which must carry `nonce`; Malformed without one.

    A fence around it may be closed below it. Thinking is no reply.

    >>> last_line('Well.\\n{"nonce": "ab", "winner": "1"}', "ab")["winner"]
    '1'
    """
    lines = without_thinking(reply).rstrip().splitlines()
    if lines and lines[-1].strip() in _FENCE:
        lines = "\n".join(lines[:-1]).rstrip().splitlines()
    if not lines:
        raise Malformed("the reply is empty")
    value = read_json(lines[-1].strip())
    if not isinstance(value, dict):
        raise Malformed("the last line of the reply is no object")
    if value.get("nonce") != nonce:
        raise Malformed("the last line of the reply does not carry the mark that was given")
    return value


def share(value: Json) -> float:
    """A JSON number in 0..1, or a truth value as 1 and 0; Malformed for anything else."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Malformed(f"{value!r:.40} is no number in 0..1")
    return float(value)
