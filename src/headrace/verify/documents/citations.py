"""Whether quotes stand where they are claimed to, and how well they cover the evidence.

Pure functions over strings; may be known by verifiers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Citation", "CitationScore", "cite_score", "places"]

MAX_OCCURRENCES = 100
"""How many places of one quote are looked at."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A quote, and the name of the passage in which it is said to stand."""

    passage: str
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationScore:
    """Shares (0..1) over characters other than space: of what was quoted, how much is evidence
    (`precision`; a false quote counts with all its characters), and of the evidence, how much
    was quoted (`recall`). `false` are the citations that do not stand where they claim to."""

    precision: float
    recall: float
    false: tuple[Citation, ...]

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def cite_score(
    passages: Mapping[str, str], evidence: Sequence[Citation], cited: Sequence[Citation]
) -> CitationScore:
    """How well `cited` covers `evidence`. A place that is quoted twice counts once.

    A quote stands in its passage if it is there after runs of space are made one; where it is
    there several times, the place counts that covers most evidence. Raises ValueError where
    evidence itself does not stand in its passage.

    >>> gold = [Citation("1", "red barn")]
    >>> cite_score({"1": "A red\\nbarn burnt."}, gold, [Citation("1", "A red barn")]).precision
    0.875
    """
    meant: set[tuple[str, int]] = set()
    for citation in evidence:
        found = places(passages.get(citation.passage, ""), citation.quote)
        if not found:
            raise ValueError(f"the evidence is not in its passage: {citation}")
        meant |= {(citation.passage, position) for position in found[0]}
    quoted: set[tuple[str, int]] = set()
    false: list[Citation] = []
    for citation in cited:
        spans = _claimed(passages, citation)
        if not spans:
            false.append(citation)
            continue
        best = max(spans, key=lambda span: len(span & meant))
        quoted |= best
    wrong = sum(len("".join(citation.quote.split())) or 1 for citation in false)
    hit = len(quoted & meant)
    return CitationScore(
        precision=hit / (len(quoted) + wrong) if hit else 0.0,
        recall=hit / len(meant),
        false=tuple(false),
    )


def places(passage: str, quote: str) -> list[frozenset[int]]:
    """Where `quote` stands in `passage`: for each occurrence the positions (in the passage with
    single spaces) of its characters other than space. Occurrences begin and end at the edge of
    a word; the first MAX_OCCURRENCES are given."""
    text, wanted = " ".join(passage.split()), " ".join(quote.split())
    return [
        frozenset(i for i in range(start, start + len(wanted)) if text[i] != " ")
        for start in itertools.islice(_occurrences(text, wanted), MAX_OCCURRENCES)
    ]


def _claimed(passages: Mapping[str, str], citation: Citation) -> list[frozenset[tuple[str, int]]]:
    passage = passages.get(citation.passage, "")
    return [
        frozenset((citation.passage, position) for position in span)
        for span in places(passage, citation.quote)
    ]


def _occurrences(text: str, wanted: str) -> Iterator[int]:
    start = text.find(wanted) if wanted else -1
    while start >= 0:
        end = start + len(wanted)
        inner_start = start > 0 and text[start - 1].isalnum() and wanted[0].isalnum()
        inner_end = end < len(text) and text[end].isalnum() and wanted[-1].isalnum()
        if not inner_start and not inner_end:
            yield start
        start = text.find(wanted, start + 1)
