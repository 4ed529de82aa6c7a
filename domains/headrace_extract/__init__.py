"""The task pack `extract`: records to be read out of generated texts, as JSON.

`words` are the lists that `texts` makes five tiers of texts from, `records` is the domain.
Found by the entry point `headrace.packs`; imports the vocabulary of headrace and its verifier
`structured-output`.
"""

from __future__ import annotations

from headrace_extract.records import Records
from headrace_extract.texts import TIERS, Extraction

__all__ = ["TIERS", "ExtractPack", "Extraction", "Records", "pack"]


class ExtractPack:
    """One domain, "extract/records"; its verifier starts a process only where a task needs it."""

    def names(self) -> list[str]:
        return [Records.name]

    def open(self, name: str) -> Records:
        """The domain; KeyError for any other name."""
        if name != Records.name:
            raise KeyError(name)
        return Records()

    def close(self) -> None:
        """Nothing to end."""


pack = ExtractPack()
