"""From a model source to a model that computes: weights, tokenizer, and where it ends.

Everything is read from local files in the safetensors layout, in fp32; no code that comes with
a model is ever run. The libraries' own bars and advice are kept off the console.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as library_logging

from headrace.errors import ModelError
from headrace.policy.cache import Progress
from headrace.policy.memory import wish_for_large_pages
from headrace.policy.pull import first_line, pull

__all__ = ["LoadedModel", "load"]

_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)
"""What the libraries raise at files that are not what they should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A causal language model ready to run, and what it is.

    `model` is fp32, on the CPU, in eval mode. `end_ids` are all the ids at which it may end what
    it writes, ascending. `digest` identifies the files it was read from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    directory: Path
    digest: str
    end_ids: tuple[int, ...]


def load(source: str, *, progress: Progress | None = None) -> LoadedModel:
    """Pull the model if need be, and load it.

    Raises ModelError where the files are no complete causal language model with a tokenizer,
    and what `headrace.policy.pull.pull` raises.
    """
    wish_for_large_pages()
    pulled = pull(source, progress=progress)
    with _quiet():
        _check_config(pulled.directory)
        tokenizer = _load_tokenizer(pulled.directory)
        model = _load_model(pulled.directory)
    rows = int(model.config.get_text_config().vocab_size)
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens but the model only {rows}",
            where=str(pulled.directory),
        )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        source=pulled.source,
        directory=pulled.directory,
        digest=pulled.digest,
        end_ids=_end_ids(model, tokenizer),
    )


def _check_config(directory: Path) -> None:
    """Refuse what is no causal language model, before anything large is read."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text())
        kind, named = str(config["model_type"]), list(map(str, config.get("architectures") or []))
    except FileNotFoundError as error:
        raise ModelError(
            "not a model directory: it has no config.json", where=str(directory)
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"config.json is damaged: {error!r}", where=str(path)) from error
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (named and not causal & set(named)):
        brings_code = "; code that comes with a model is never run" if "auto_map" in config else ""
        raise ModelError(
            f"not a causal language model that transformers knows: "
            f"{', '.join(named) or kind}{brings_code}",
            where=str(path),
        )


def _load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            "the model has no tokenizer.json",
            where=str(directory),
            hint="save it with AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        )
    try:
        json.loads(path.read_text())
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except _DAMAGE as error:
        raise ModelError(
            f"the model has no usable tokenizer: {first_line(error)}", where=str(directory)
        ) from error
    return tokenizer


def _load_model(directory: Path) -> PreTrainedModel:
    if not any(directory.glob("*.safetensors")):
        raise ModelError(
            "the model has no safetensors weights; pickled ones are not read",
            where=str(directory),
        )
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except _DAMAGE as error:
        raise ModelError(
            f"the weights cannot be read: {first_line(error)}", where=str(directory)
        ) from error
    model, report = loaded
    lacking = sorted({*report["missing_keys"], *(str(k) for k in report["mismatched_keys"])})
    if lacking:
        raise ModelError(
            f"{len(lacking)} weights are missing or have another shape, {lacking[0]} among them",
            where=str(directory),
        )
    return model.eval()


# --- where a model ends --------------------------------------------------------------------


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """All end tokens: of generation config, config and tokenizer, and the template's turn end.

    One of them alone is not enough: chat models end turns with a token that is often not the
    one which their configuration calls the end of text.
    """
    stated: list[object] = [
        model.config.eos_token_id,
        model.generation_config.eos_token_id,
        tokenizer.eos_token_id,
    ]
    ends = {id for value in stated for id in _as_ids(value)} | set(_turn_end(tokenizer))
    if not ends:
        raise ModelError("the model names no end token, so it could never finish")
    return tuple(sorted(ends))


def _as_ids(value: object) -> Iterable[int]:
    if isinstance(value, int):
        return (value,)
    return [id for id in value if isinstance(id, int)] if isinstance(value, list | tuple) else ()


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> Iterable[int]:
    """The special token that the chat template puts right after what an assistant said."""
    said = "\ue000"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": said}]
    if tokenizer.chat_template is None:
        return ()
    try:
        text = str(tokenizer.apply_chat_template(talk, tokenize=False))
    except TemplateError:
        return ()
    ids = tokenizer.encode(text.rpartition(said)[2].lstrip(), add_special_tokens=False)
    return ids[:1] if set(ids[:1]) <= set(tokenizer.added_tokens_decoder) else ()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep the library's progress bars and advice off the console for a while."""
    verbosity, bars = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.set_verbosity(verbosity)
        if bars:
            library_logging.enable_progress_bar()
