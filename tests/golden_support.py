"""The tiny model and the recorded values of another implementation, see `goldens/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.types import Floats, Sample

FOLDER = Path(__file__).parent / "algorithms" / "goldens"
RECORD: dict[str, Any] = json.loads((FOLDER / "losses.json").read_text())
DATA: dict[str, Any] = RECORD["data"]
CASES: dict[str, Any] = RECORD["cases"]


def golden_model(name: str) -> LlamaForCausalLM:
    """The "policy" or the "reference", in fp32, as the other implementation had it."""
    model = LlamaForCausalLM(LlamaConfig(**DATA["config"]))
    model.load_state_dict(load_file(FOLDER / f"{name}.safetensors"))
    return model.float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Of the trainable tokens [T] of samples: log-probability, and its mean over the vocabulary."""

    logp: Tensor
    uniform: Tensor


def score(model: LlamaForCausalLM, samples: Sequence[Sample]) -> Scored:
    """Each sample alone, without padding."""
    logps: list[Tensor] = []
    uniforms: list[Tensor] = []
    for sample in samples:
        ids = torch.tensor(sample.ids, dtype=torch.int64)
        at = torch.from_numpy(np.flatnonzero(sample.trainable))
        logits = torch.log_softmax(model(ids[None]).logits[0], dim=-1)[at - 1]
        logps.append(logits.gather(-1, ids[at][:, None])[:, 0])
        uniforms.append(logits.mean(dim=-1))
    return Scored(logp=torch.cat(logps), uniform=torch.cat(uniforms))


def measured(model: LlamaForCausalLM, samples: Sequence[Sample]) -> dict[str, Floats]:
    """Log-probabilities [n] by the sample's trajectory, NaN outside its trainable tokens."""
    found: dict[str, Floats] = {}
    for sample in samples:
        with torch.no_grad():
            logp = score(model, [sample]).logp
        row = np.full(len(sample.ids), np.nan, np.float32)
        row[sample.trainable] = logp.numpy()
        found[sample.trajectory] = row
    return found


def deviation(case: str, loss: Tensor, parameters: dict[str, Tensor]) -> float:
    """The largest difference of loss or gradient from the record, relative above 1."""
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    worst = _difference(loss.item(), CASES[case]["loss"])
    assert sorted(parameters) == sorted(CASES[case]["gradients"])
    for name, gradient in zip(parameters, gradients, strict=True):
        flat = gradient.flatten()
        expected = CASES[case]["gradients"][name]
        places = torch.linspace(0, len(flat) - 1, len(expected["entries"])).round().long()
        worst = max(worst, _difference(float(flat.norm()), expected["norm"]))
        for value, known in zip(flat[places].tolist(), expected["entries"], strict=True):
            worst = max(worst, _difference(value, known))
    return worst


def _difference(value: float, known: float) -> float:
    return abs(value - known) / max(1.0, abs(known))
