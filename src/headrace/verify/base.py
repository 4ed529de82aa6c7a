"""What most verifiers share: an identity, and nothing that invites attacks beyond plain text.

May be known by every verifier and task pack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from headrace.types import Task, Verdict, VerifierRef
from headrace.verify.kinds import Surface

__all__ = ["BaseVerifier"]


class BaseVerifier(ABC):
    """A verifier with the answers that most give to `Auditable`.

    A subclass sets `ref` (its version changes whenever a score could) and judges. `judge` must
    be a pure function of (task, text), must bear to be called from several threads at once, and
    raises for nothing that a text can do.
    """

    ref: VerifierRef
    surfaces: ClassVar[tuple[Surface, ...]] = ("text",)

    @abstractmethod
    def judge(self, task: Task, text: str) -> Verdict: ...

    def floor(self, task: Task) -> float:
        """What an answer without merit may score at most."""
        del task
        return 0.0

    def hints(self, task: Task) -> Mapping[str, str]:
        """What the policy knows and tricks may use."""
        del task
        return {}

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """Wrong answers close to `reference`, beyond those that the audit makes by itself."""
        del task, reference
        return ()
