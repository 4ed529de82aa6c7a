"""headrace's own side of the engine benchmarks: its public API, in a process like the peers'."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from reward import letters
from wire import Wire, timed

import headrace
from headrace.policy.engine import TorchPolicy
from headrace.policy.learner import TorchLearner
from headrace.policy.load import load
from headrace.policy.memory import keep_freed_memory
from headrace.policy.sampler import TorchSampler
from headrace.protocols import Completion, LossSpec, SampleRequest, SamplingParams
from headrace.recipe import LearnerSpec, ModelSpec, SamplerSpec
from headrace.types import Floats, Sample

Answer = dict[str, Any]


class Engine:
    """The policy with its sampler and learner; each public method answers one request."""

    def __init__(self, spec: dict[str, Any]) -> None:
        keep_freed_memory()
        options: dict[str, Any] = {"source": spec["model"], "device": "cpu"}
        options["autocast"] = spec.get("autocast", "off")
        loaded = load(spec["model"])
        self._shape = _shape(loaded.model)
        self._policy = TorchPolicy(loaded, ModelSpec(**options))
        self._policy.end_ids = frozenset()
        self._sampler = TorchSampler(self._policy, SamplerSpec(dtype=spec["dtype"]))
        learning = LearnerSpec(learning_rate=spec.get("learning_rate", 1e-6))
        self._learner = TorchLearner(self._policy, learning, total_steps=10_000)

    @property
    def name(self) -> str:
        """What runs the sampler's model."""
        return self._sampler.engine

    # --- what is timed -------------------------------------------------------------------

    def decode(self, request: dict[str, Any]) -> Answer:
        """Sample from every prompt; seconds and sampled tokens."""
        seconds, drawn = timed(lambda: self._draw(request))
        return {"seconds": seconds, "tokens": sum(len(c.ids) for row in drawn for c in row)}

    def grpo(self, request: dict[str, Any]) -> Answer:
        """A whole step: sample, reward, one update, publish; seconds and samples."""
        seconds, count = timed(lambda: self._grpo_step(request))
        return {"seconds": seconds, "count": count}

    def sft(self, request: dict[str, Any]) -> Answer:
        """One optimizer step of cross-entropy over whole sequences; seconds and tokens."""
        seconds, count = timed(lambda: self._sft_step(request["sequences"]))
        return {"seconds": seconds, "count": count}

    # --- what is measured ----------------------------------------------------------------

    def parity(self, request: dict[str, Any]) -> Answer:
        """The largest distance of the sampler's log-probabilities from the learner's."""
        drawn = self._draw(request)
        samples, heard = _samples_of(request["prompts"], drawn)
        scored = self._learner.logprobs(samples, which="current")
        gaps = [
            np.abs(row[sample.trainable] - said).max()
            for sample, row, said in zip(samples, scored, heard, strict=True)
        ]
        return {"gap": float(max(gaps)), "sequences": len(samples)}

    def shape(self, request: dict[str, Any]) -> Answer:
        return self._shape

    def rates(self, request: dict[str, Any]) -> Answer:
        """What the machine gives: best FLOP/s in both types, best bytes/s read from memory."""
        quick = bool(request["quick"])
        return {
            "fp32": max(_matmul_rate(shape, torch.float32, quick) for shape in _shapes(quick)),
            "bf16": max(_matmul_rate(shape, torch.bfloat16, quick) for shape in _shapes(quick)),
            "bandwidth": max(_read_rate(size, quick) for size in ((128,) if quick else (128, 512))),
        }

    # --- steps ---------------------------------------------------------------------------

    def _draw(self, request: dict[str, Any]) -> list[list[Completion]]:
        params = SamplingParams(max_new_tokens=request["new_tokens"], temperature=1.0)
        each, seed = request["samples"], request["seed"]
        requests = [
            SampleRequest(
                np.array(ids, dtype=np.int32),
                tuple(range(seed + place * each, seed + (place + 1) * each)),
                params,
            )
            for place, ids in enumerate(request["prompts"])
        ]
        return self._sampler.sample(requests)

    def _grpo_step(self, request: dict[str, Any]) -> int:
        drawn = self._draw(request)
        decode: Callable[..., Any] = self._policy.tokenizer.decode
        scores = [
            np.array([letters(decode(c.ids, skip_special_tokens=True)) for c in row])
            for row in drawn
        ]
        advantages = [(row - row.mean()) / (row.std(ddof=1) + 1e-4) for row in scores]
        samples, _ = _samples_of(request["prompts"], drawn, advantages)
        self._learner.forward_backward(samples, LossSpec())
        self._learner.optim_step()
        self._learner.publish()
        return len(samples)

    def _sft_step(self, sequences: Sequence[Sequence[int]]) -> int:
        trained = sum(len(ids) - 1 for ids in sequences)
        samples: list[Sample] = []
        for number, ids in enumerate(sequences):
            trainable = np.arange(len(ids)) > 0
            samples.append(
                _sample(ids, trainable, f"text/{number}", cross_entropy_weight=1 / trained)
            )
        self._learner.forward_backward(samples, LossSpec())
        self._learner.optim_step()
        return sum(map(len, sequences))


def _samples_of(
    prompts: Sequence[Sequence[int]],
    drawn: Sequence[Sequence[Completion]],
    advantages: Sequence[Sequence[float] | np.ndarray] | None = None,
) -> tuple[list[Sample], list[Floats]]:
    """Samples of equal token weight, and what the sampler said of their tokens."""
    total = sum(len(c.ids) for row in drawn for c in row)
    samples: list[Sample] = []
    heard: list[Floats] = []
    for group, (prompt, row) in enumerate(zip(prompts, drawn, strict=True)):
        for place, completion in enumerate(row):
            ids = [*prompt, *completion.ids.tolist()]
            samples.append(
                _sample(
                    ids,
                    np.arange(len(ids)) >= len(prompt),
                    f"{group}/{place}",
                    behaviour=completion.logps,
                    advantage=1.0 if advantages is None else float(advantages[group][place]),
                    policy_weight=1 / total,
                )
            )
            heard.append(completion.logps)
    return samples, heard


def _sample(
    ids: Sequence[int],
    trainable: np.ndarray,
    trajectory: str,
    *,
    behaviour: Floats | None = None,
    **values: float,
) -> Sample:
    """A sample whose weights and advantage have one value on all trainable tokens, else 0."""
    zeros = np.zeros(len(ids), dtype=np.float32)
    said = zeros.copy()
    if behaviour is not None:
        said[trainable] = behaviour

    def spread(name: str) -> Floats:
        return np.where(trainable, np.float32(values.get(name, 0.0)), zeros)

    return Sample(
        ids=np.array(ids, dtype=np.int32),
        trainable=trainable,
        behaviour=said,
        advantage=spread("advantage"),
        policy_weight=spread("policy_weight"),
        cross_entropy_weight=spread("cross_entropy_weight"),
        kl_weight=zeros,
        entropy_weight=zeros,
        trajectory=trajectory,
        group=trajectory.partition("/")[0],
        version=0,
    )


# --- the machine and the model -------------------------------------------------------------


def _shape(model: Any) -> Answer:
    """The sizes that the roofline arithmetic needs."""
    config = model.config
    head = model.get_output_embeddings().weight
    linear = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module.weight is not head
    )
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "linear": linear,
        "head": head.numel(),
        "layers": config.num_hidden_layers,
        "query_width": config.num_attention_heads * width,
        "key_width": config.num_key_value_heads * width,
    }


def _shapes(quick: bool) -> list[tuple[int, int, int]]:
    """Matrix products to try: the model's own at several batch sizes, and large square ones."""
    if quick:
        return [(256, 576, 1536), (512, 512, 512)]
    layers = [(rows, 576, 1536) for rows in (64, 512, 2048)]
    return [*layers, (64, 576, 49152), (512, 1536, 576), (1024, 1024, 1024), (2048, 2048, 2048)]


def _best(work: Callable[[], Any], quick: bool) -> float:
    """The shortest of several runs, in seconds."""
    work()
    deadline = time.perf_counter() + (0.15 if quick else 1.5)
    seconds = [timed(work)[0] for _ in range(2)]
    while time.perf_counter() < deadline:
        seconds.append(timed(work)[0])
    return min(seconds)


def _matmul_rate(shape: tuple[int, int, int], dtype: torch.dtype, quick: bool) -> float:
    rows, width, columns = shape
    left = torch.randn(rows, width).to(dtype)
    right = torch.randn(columns, width).to(dtype)
    with torch.inference_mode():
        best = _best(lambda: torch.nn.functional.linear(left, right), quick)
    return 2.0 * rows * width * columns / best


def _read_rate(megabytes: int, quick: bool) -> float:
    """Bytes/s of reading `megabytes` MB once: the better of a sum and a matrix-vector product."""
    matrix = torch.ones(megabytes * 250, 1000)
    vector = torch.ones(1000)
    with torch.inference_mode():
        best = min(_best(matrix.sum, quick), _best(lambda: torch.mv(matrix, vector), quick))
    return matrix.nbytes / best


def main() -> None:
    wire = Wire()
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    engine = Engine(spec)
    wire.reply(
        ready=True,
        version=f"headrace {headrace.__version__} ({engine.name})",
        threads=torch.get_num_threads(),
    )
    work: dict[str, Callable[[dict[str, Any]], Answer]] = {
        "decode": engine.decode,
        "grpo": engine.grpo,
        "sft": engine.sft,
        "parity": engine.parity,
        "shape": engine.shape,
        "rates": engine.rates,
    }
    for request in wire.requests():
        wire.reply(**work[request["do"]](request))


if __name__ == "__main__":
    main()
