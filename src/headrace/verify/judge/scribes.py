"""Who answers for a judge: a model behind one verb, and how it can fail. Knows no prompt."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from headrace.errors import VerifierError

__all__ = ["Declined", "Refused", "Scorer", "Scribe", "Unreachable"]


@runtime_checkable
class Scribe(Protocol):
    """A model that continues a prompt, greedily; for several threads.

    `identity` names the model and all that its replies depend on: it is part of the version of
    every verifier that asks it. Raises Unreachable, Declined or Refused.
    """

    @property
    def identity(self) -> str: ...

    def complete(self, prompt: str, *, max_tokens: int) -> str: ...


@runtime_checkable
class Scorer(Protocol):
    """A reward model: any finite number for an answer to a prompt, more being better.

    `identity` and errors as of `Scribe`.
    """

    @property
    def identity(self) -> str: ...

    def score(self, prompt: str, answer: str) -> float: ...


class Unreachable(VerifierError):
    """The model gave no reply, by no fault of what it was asked: asking later may help."""


class Declined(VerifierError):
    """The model will not reply to this very request (too long, a filter), however often asked."""


class Refused(VerifierError):
    """The model will reply to nobody who asks like this: the key, the address or its name."""
