"""The reward that both sides of the GRPO comparison compute: plain, and never a tie for long."""

from __future__ import annotations

import string

__all__ = ["letters"]


def letters(text: str) -> float:
    """The share of the alphabet that occurs in `text`, in [0, 1].

    >>> letters("Abba")
    0.07692307692307693
    """
    return len(set(text.lower()) & set(string.ascii_lowercase)) / 26
