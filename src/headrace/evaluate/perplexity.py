"""Perplexity on general text: does a model still speak, whatever else it has learned?

A fixed suite of short dialogues and paragraphs in plain English, `general.jsonl`, written for
this purpose. The figure is the mean negative log-likelihood per token in nats (perplexity is its
exponential), compared between two models text by text. Models come in as a callable that scores
samples, so that nothing here loads torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from headrace.types import Floats, Ids, Json, Message, Role, Sample

__all__ = [
    "GeneralText",
    "Interval",
    "TextLoss",
    "general_samples",
    "general_texts",
    "mean_loss",
    "measure_losses",
    "paired_loss",
]

SUITE = "general-text"
_ROLES: tuple[Role, ...] = ("user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralText:
    """A text of the suite: `text` is scored, after the conversation `before` it, if any."""

    key: str
    before: tuple[Message, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLoss:
    """What a text cost a model: `nats` in all, over its `tokens` scored tokens."""

    key: str
    nats: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean per token over `n` texts in nats, its standard error and its interval."""

    value: float
    stderr: float
    low: float
    high: float
    n: int


def general_texts() -> tuple[GeneralText, ...]:
    """The suite, the same for ever; the digest of its file is that of the suite.

    >>> texts = general_texts()
    >>> len(texts), sum(bool(text.before) for text in texts)
    (40, 24)
    """
    lines = files("headrace.evaluate").joinpath("general.jsonl").read_text("utf-8").splitlines()
    return tuple(_text(json.loads(line)) for line in lines)


def _text(row: Json) -> GeneralText:
    turns: list[str] = [row["text"]] if isinstance(row["text"], str) else row["text"]
    before = [Message.of(_ROLES[i % 2], said) for i, said in enumerate(turns[:-1])]
    return GeneralText(key=row["key"], before=tuple(before), text=turns[-1])


def general_samples(
    texts: Sequence[GeneralText],
    prompt: Callable[[Sequence[Message]], Ids],
    encode: Callable[[str], Ids],
) -> list[Sample]:
    """The texts as samples to be scored, `trainable` where a token counts.

    `prompt` gives the ids of a conversation up to where the assistant speaks, `encode` those of
    plain text without special tokens. The first token of a text on its own has no prediction
    and does not count.
    """
    return [_sample(text, prompt, encode) for text in texts]


def _sample(
    text: GeneralText, prompt: Callable[[Sequence[Message]], Ids], encode: Callable[[str], Ids]
) -> Sample:
    before = prompt(text.before) if text.before else np.zeros(0, np.int32)
    ids = np.concatenate([before, encode(text.text)]).astype(np.int32)
    trainable = np.arange(len(ids)) >= max(len(before), 1)
    nothing = np.zeros(len(ids), np.float32)
    return Sample(
        ids=ids,
        trainable=trainable,
        behaviour=nothing,
        advantage=nothing,
        policy_weight=nothing,
        cross_entropy_weight=nothing,
        kl_weight=nothing,
        entropy_weight=nothing,
        trajectory=f"{SUITE}/{text.key}",
        group=text.key,
        version=0,
    )


def measure_losses(
    samples: Sequence[Sample], logprobs: Callable[[Sequence[Sample]], Sequence[Floats]]
) -> tuple[TextLoss, ...]:
    """Score the samples with one model; `logprobs` gives an array [n] for each, in nats.

    Raises ValueError where a log-probability is not finite, or above 0.
    """
    found: list[TextLoss] = []
    for sample, logps in zip(samples, logprobs(samples), strict=True):
        counted = np.asarray(logps, np.float64)[sample.trainable]
        if not bool(np.all(np.isfinite(counted) & (counted <= 1e-6))):
            raise ValueError(f"{sample.trajectory}: what came back is no log-probability")
        found.append(TextLoss(key=sample.group, nats=-math.fsum(counted), tokens=int(counted.size)))
    return tuple(found)


def mean_loss(losses: Sequence[TextLoss], confidence: float = 0.95) -> Interval:
    """Nats per token over all texts, R = sum(nats) / sum(tokens), texts being independent.

    The standard error is that of a ratio (Cochran 1977, 6.4): residuals nats - R tokens of whole
    texts, sqrt(n / (n - 1) sum(residual^2)) / sum(tokens). Student's interval with n - 1 degrees
    of freedom. Raises ValueError for fewer than two texts.

    >>> texts = [TextLoss(key="a", nats=2.0, tokens=2), TextLoss(key="b", nats=6.0, tokens=2)]
    >>> found = mean_loss(texts)
    >>> found.value, found.stderr
    (2.0, 1.0)
    """
    return _ratio([loss.nats for loss in losses], [loss.tokens for loss in losses], confidence)


def paired_loss(
    before: Sequence[TextLoss], after: Sequence[TextLoss], confidence: float = 0.95
) -> Interval:
    """How many nats per token the same texts cost more after than before (0: nothing changed).

    As `mean_loss`, of the differences. Raises ValueError where the texts are not the same.
    """
    if [(b.key, b.tokens) for b in before] != [(a.key, a.tokens) for a in after]:
        raise ValueError("the two measurements are of different texts or tokenizers")
    changes = [a.nats - b.nats for b, a in zip(before, after, strict=True)]
    return _ratio(changes, [b.tokens for b in before], confidence)


def _ratio(sums: Sequence[float], sizes: Sequence[int], confidence: float) -> Interval:
    n, size = len(sums), sum(sizes)
    if n < 2 or size == 0:
        raise ValueError(f"{n} texts with {size} tokens: too few to say anything")
    value = math.fsum(sums) / size
    squares = math.fsum((y - value * m) ** 2 for y, m in zip(sums, sizes, strict=True))
    stderr = math.sqrt(squares * n / (n - 1)) / size
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * stderr
    return Interval(value=value, stderr=stderr, low=value - half, high=value + half, n=n)
