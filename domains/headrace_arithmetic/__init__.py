"""The task pack `arithmetic`: a ladder of integer problems, judged by the last number said.

`ladder` makes the problems, `final_integer` judges them. Found by the entry point
`headrace.packs`; imports the vocabulary of headrace and what verifiers share.
"""

from __future__ import annotations

from headrace_arithmetic.final_integer import FinalInteger, read_final_integer
from headrace_arithmetic.ladder import TIERS, Arithmetic

__all__ = ["TIERS", "Arithmetic", "ArithmeticPack", "FinalInteger", "pack", "read_final_integer"]


class ArithmeticPack:
    """One domain, "arithmetic"; holds no resources."""

    def names(self) -> list[str]:
        return ["arithmetic"]

    def open(self, name: str) -> Arithmetic:
        """The domain; KeyError for any other name."""
        if name != "arithmetic":
            raise KeyError(name)
        return Arithmetic()

    def close(self) -> None:
        """Nothing to end."""


pack = ArithmeticPack()
