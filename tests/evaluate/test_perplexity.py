from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import pytest

from headrace.data.render import Renderer
from headrace.evaluate.perplexity import (
    GeneralText,
    TextLoss,
    general_samples,
    general_texts,
    mean_loss,
    measure_losses,
    paired_loss,
)
from headrace.policy.tiny import tiny_tokenizer
from headrace.types import Floats, Ids, Message, Sample

DIGEST = "6ac73f714fcc05ac15d25141388d5cad94daae4a5fa07f7dfacb53cdc8ad5b4d"


def losses(nats: Sequence[float], tokens: Sequence[int]) -> list[TextLoss]:
    return [
        TextLoss(key=str(i), nats=y, tokens=m)
        for i, (y, m) in enumerate(zip(nats, tokens, strict=True))
    ]


# --- the suite -----------------------------------------------------------------------------


def test_the_suite_is_fixed() -> None:
    data = files("headrace.evaluate").joinpath("general.jsonl").read_bytes()
    assert hashlib.sha256(data).hexdigest() == DIGEST


def test_the_suite_is_plain_distinct_english() -> None:
    texts = general_texts()
    assert len({text.key for text in texts}) == len({text.text for text in texts}) == 40
    for text in texts:
        said = " ".join([*(message.text for message in text.before), text.text])
        assert said.isascii()
        assert 20 <= len(text.text.split()) <= 80
        roles = [message.role for message in text.before]
        assert roles == ["user", "assistant"][: len(roles)] or roles == [
            "user",
            "assistant",
            "user",
        ]


def tiny_samples(texts: Sequence[GeneralText]) -> list[Sample]:
    tokenizer = tiny_tokenizer()
    renderer = Renderer(tokenizer, [2])

    def prompt(messages: Sequence[Message]) -> Ids:
        return renderer.prompt(messages, system=None)

    def encode(text: str) -> Ids:
        return np.asarray(tokenizer.encode(text, add_special_tokens=False), np.int32)

    return general_samples(texts, prompt, encode)


def test_what_is_scored_of_a_dialogue_is_its_last_answer_and_of_prose_all_but_the_first() -> None:
    tokenizer = tiny_tokenizer()
    texts = general_texts()
    for text, sample in zip(texts, tiny_samples(texts), strict=True):
        scored = tokenizer.decode(sample.ids[sample.trainable].tolist())
        assert isinstance(scored, str)
        if text.before:
            assert scored == text.text
            context = tokenizer.decode(sample.ids[~sample.trainable].tolist())
            assert isinstance(context, str)
            assert text.before[-1].text in context
        else:
            assert text.text.endswith(scored)
            assert int((~sample.trainable).sum()) == 1


def test_a_model_that_knows_nothing_costs_the_logarithm_of_the_vocabulary() -> None:
    samples = tiny_samples(general_texts())

    def uniform(batch: Sequence[Sample]) -> list[Floats]:
        return [np.where(s.trainable, -math.log(271), 7.0).astype(np.float32) for s in batch]

    found = mean_loss(measure_losses(samples, uniform))
    assert found.value == pytest.approx(math.log(271), rel=1e-6)
    assert found.stderr == pytest.approx(0, abs=1e-6)
    assert found.n == 40


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.5])
def test_what_is_no_log_probability_is_an_error(value: float) -> None:
    samples = tiny_samples(general_texts()[:2])
    with pytest.raises(ValueError, match="general-text/bread: what came back is no"):
        measure_losses(
            samples, lambda batch: [np.full(len(s.ids), value, np.float32) for s in batch]
        )


def test_a_value_where_nothing_is_scored_does_not_count() -> None:
    samples = tiny_samples(general_texts()[:2])
    found = measure_losses(
        samples,
        lambda batch: [np.where(s.trainable, -1.0, np.nan).astype(np.float32) for s in batch],
    )
    assert [loss.nats for loss in found] == [loss.tokens for loss in found]


# --- the statistics ------------------------------------------------------------------------


def test_the_mean_is_over_tokens_and_the_error_over_texts() -> None:
    found = mean_loss(losses([10.0, 30.0, 20.0], [10, 10, 20]), 0.95)
    assert found.value == 60 / 40
    # residuals 10 - 15, 30 - 15, 20 - 30: squares 25 + 225 + 100
    assert found.stderr == pytest.approx(math.sqrt(350 * 3 / 2) / 40)
    # Student's t with 2 degrees of freedom at 95 %: 4.3027
    assert found.high - found.value == pytest.approx(4.3027 * found.stderr, rel=1e-4)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_the_error_is_that_of_resampled_texts() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(20, 120, 60)
    nats = tokens * rng.normal(3.0, 0.4, 60)
    found = mean_loss(losses(nats.tolist(), tokens.tolist()))
    picks = rng.integers(0, 60, (4000, 60))
    spread = float(np.std(nats[picks].sum(1) / tokens[picks].sum(1)))
    assert found.stderr == pytest.approx(spread, rel=0.05)


def test_a_pairing_sees_what_two_intervals_cannot() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(20, 120, 40).tolist()
    before = [m * x for m, x in zip(tokens, rng.normal(3.0, 0.5, 40).tolist(), strict=True)]
    after = [y + 0.05 * m for y, m in zip(before, tokens, strict=True)]
    change = paired_loss(losses(before, tokens), losses(after, tokens))
    assert change.value == pytest.approx(0.05)
    assert change.low > 0.049
    assert mean_loss(losses(before, tokens)).high > mean_loss(losses(after, tokens)).low


def test_a_model_compared_with_itself_has_not_changed() -> None:
    same = losses([3.0, 5.0, 9.0], [2, 3, 4])
    change = paired_loss(same, same)
    assert (change.value, change.low, change.high) == (0, 0, 0)


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(2000):
        tokens = rng.integers(30, 90, 40)
        change = tokens * (0.02 + rng.normal(0, 0.1, 40))
        before = losses(tokens.tolist(), tokens.tolist())
        after = losses((tokens + change).tolist(), tokens.tolist())
        found = paired_loss(before, after, 0.95)
        covered += found.low <= 0.02 <= found.high
    assert 0.935 <= covered / 2000 <= 0.965


@pytest.mark.parametrize(
    "other", [losses([1.0, 1.0], [2, 3]), losses([1.0, 1.0, 1.0], [2, 2, 2]), losses([1.0], [2])]
)
def test_different_texts_are_not_compared(other: list[TextLoss]) -> None:
    with pytest.raises(ValueError, match="different texts or tokenizers"):
        paired_loss(losses([1.0, 1.0], [2, 2]), other)


def test_one_text_is_too_few() -> None:
    with pytest.raises(ValueError, match="1 texts"):
        mean_loss(losses([1.0], [2]))
