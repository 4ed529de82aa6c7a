"""The default model, really pulled: needs an index that pip can reach, and a minute."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch

from headrace.data.render import Renderer
from headrace.policy.load import LoadedModel, load
from headrace.policy.pull import check
from headrace.recipe import DEFAULT_MODEL
from headrace.types import Message

pytestmark = pytest.mark.slow

PASSAGE = (
    "The sun is the star at the center of the solar system. It is a massive, hot ball of plasma, "
    "heated by nuclear fusion reactions in its core. The sun gives off light and heat, which makes "
    "life on earth possible. The earth goes around the sun once a year, and it turns around its "
    "own axis once a day. The moon goes around the earth about once a month. Plants use the light "
    "of the sun to grow, and animals eat plants or other animals."
)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Generator[LoadedModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("smollm2")))
        loaded = load(DEFAULT_MODEL)
        assert check(DEFAULT_MODEL).digest == loaded.digest
        yield loaded


def test_it_has_the_parameters_that_its_authors_count(smollm2: LoadedModel) -> None:
    assert smollm2.model.num_parameters() == 134_515_008
    assert smollm2.end_ids == (2,)


def test_its_tokenizer_is_lossless_and_splits_digits(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    text = "Größe: 12345 + 67 = 12412\n\tdef f(x):  return x  # naïve 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12345")) == list("12345")


def test_it_finds_plain_english_likely(smollm2: LoadedModel) -> None:
    """Perplexity 7.8 as converted; 41 with the rotary rows left in GGUF's order."""
    ids = torch.tensor([smollm2.tokenizer.encode(PASSAGE)])
    with torch.no_grad():
        loss = smollm2.model(ids, labels=ids).loss
    assert float(loss.exp()) < 9


def test_it_answers_a_question_and_ends_its_turn(smollm2: LoadedModel) -> None:
    renderer = Renderer(smollm2.tokenizer, smollm2.end_ids)
    prompt = renderer.prompt([Message.of("user", "What is the capital of France?")], system=None)
    ids = torch.from_numpy(prompt).long()[None]
    model: Any = smollm2.model
    with torch.no_grad():
        written = model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert int(written[-1]) == 2
    assert "Paris" in renderer.text(written.int().numpy())
