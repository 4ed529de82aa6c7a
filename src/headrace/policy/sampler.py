"""Sampling from the policy in this process: batched continuously, cached in blocks, exact.

The fastest runner that fits the model is chosen: kernels of our own for Llama-shaped models on
a CPU, else the model's own code over a paged cache, else no cache at all. All of them draw the
same way from logits that agree.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import cast

import torch

from headrace.errors import ModelError, RecipeError
from headrace.policy.batching import Batching, ContinuousBatch, Decoder, tail_blocks
from headrace.policy.blocks import BLOCK, BlockPool
from headrace.policy.engine import TorchPolicy
from headrace.policy.flat import FlatBatch, Runner, Span
from headrace.policy.fused import FusedRunner, fits
from headrace.policy.native import Unavailable, kernels
from headrace.policy.paged import PagedRunner, cache_shapes
from headrace.policy.recompute import RecomputeRunner
from headrace.protocols import Completion, SampleRequest
from headrace.recipe import SamplerSpec

__all__ = ["TorchSampler", "agrees", "choose_runner"]

OnProgress = Callable[[int, int], None]

_MEGABYTE = 1 << 20


class TorchSampler:
    """The `Sampler` over a policy in this process.

    The same requests in the same order give the same tokens on the same machine with the same
    number of threads; with a batch-invariant runner, in any order and company.

    Weights may change in flight: `pause` waits for the pass in progress, `update` takes over
    the policy's new weights, `resume` goes on; tokens carry the version that drew them.
    """

    def __init__(self, policy: TorchPolicy, spec: SamplerSpec | None = None) -> None:
        self._policy = policy
        self._spec = spec or SamplerSpec()
        with torch.inference_mode():
            self._runner = choose_runner(policy, self._spec)
        self._taken = policy.publications
        self._pool = BlockPool(self._runner.blocks)
        isolated = self._spec.engine == "reference"
        self._batch = ContinuousBatch(
            self._runner,
            self._pool,
            Batching(
                max_rows=self._spec.max_rows, chunk=self._spec.prefill_tokens, isolated=isolated
            ),
            cast("Decoder", policy.tokenizer),
        )
        self._gate = threading.RLock()

    @property
    def version(self) -> int:
        return self._policy.version

    @property
    def engine(self) -> str:
        """What runs the model: native fp32, native bf16, general, reference or recompute."""
        return self._runner.name

    # --- weights -------------------------------------------------------------------------

    def pause(self) -> None:
        """Wait until no forward pass is running, and let none start until `resume`."""
        self._gate.acquire()

    def update(self) -> None:
        """Sample from the weights published last from the next token on."""
        with self._gate:
            if self._taken != self._policy.publications:
                with torch.inference_mode():
                    self._runner.refresh()
                self._batch.forget()
                self._taken = self._policy.publications

    def resume(self) -> None:
        self._gate.release()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Change the weights inside; they are taken over at the end."""
        self.pause()
        try:
            yield
            self.update()
        finally:
            self.resume()

    # --- sampling ------------------------------------------------------------------------

    def sample(
        self, requests: Sequence[SampleRequest], *, on_progress: OnProgress | None = None
    ) -> list[list[Completion]]:
        """Continue each prompt once for each of its seeds; `out[i][j]` used seed j.

        `on_progress(done, total)` counts finished sequences. Refused with an error: an empty
        prompt, a token id that the model does not have, a prompt that leaves no room for
        `max_new_tokens` in the model's context, a sequence that alone exceeds the memory.
        """
        self._check(requests)
        self.update()
        total = sum(len(request.seeds) for request in requests)
        results: list[list[Completion | None]] = [[None] * len(r.seeds) for r in requests]
        for index, request in enumerate(requests):
            stops = self._policy.end_ids | set(request.params.stop_ids)
            self._batch.submit(index, request.ids, request.seeds, request.params, stops)
        done = 0
        try:
            while self._batch.busy:
                with self._gate, torch.inference_mode():
                    ended = self._batch.step(self._policy.version)
                for row in ended:
                    results[row.request][row.place] = row.completion()
                done += len(ended)
                if ended and on_progress is not None:
                    on_progress(done, total)
        finally:
            if self._batch.busy:
                self._batch.abandon()
            if not self._runner.invariant:
                self._pool.forget_all()  # what is found must not depend on earlier calls
        return [[c for c in row if c is not None] for row in results]

    def _check(self, requests: Sequence[SampleRequest]) -> None:
        limit = self._policy.context_length
        vocabulary = self._policy.vocabulary
        for number, request in enumerate(requests):
            prompt, new = len(request.ids), request.params.max_new_tokens
            where = f"request {number}"
            if prompt == 0:
                raise RecipeError("a prompt needs at least one token", where=where)
            outside = request.ids[(request.ids < 0) | (request.ids >= vocabulary)]
            if len(outside):
                raise ModelError(
                    f"token id {int(outside[0])} is outside the model's vocabulary of {vocabulary}",
                    where=where,
                    hint="was the prompt encoded with another model's tokenizer?",
                )
            if limit is not None and prompt + new > limit:
                raise RecipeError(
                    f"a prompt of {prompt} tokens and {new} "
                    f"new ones do not fit the model's context of {limit}",
                    where="play.max_new_tokens",
                    hint="lower play.max_new_tokens, or limit the domain with last_tier",
                )
            needed = prompt // BLOCK + tail_blocks(prompt, new)
            if needed > self._pool.size:
                raise RecipeError(
                    f"one sequence of {prompt} + {new} tokens needs {needed} cache blocks, "
                    f"and sampler.memory_mb = {self._spec.memory_mb} holds {self._pool.size}",
                    where="sampler.memory_mb",
                    hint=f"set it to {-(-self._spec.memory_mb * needed // max(self._pool.size, 1))}"
                    " or more, or lower play.max_new_tokens",
                )


def agrees(runner: Runner, policy: TorchPolicy, *, within: float) -> bool:
    """Whether a runner's states lead to the logits of the model's own forward pass.

    `within` is a relative distance. Overwrites the first blocks of the runner's cache.
    """
    count = min(2 * BLOCK - 1, policy.context_length or BLOCK, runner.blocks * BLOCK)
    tokens = [place * 7919 % policy.vocabulary for place in range(count)]
    batch = FlatBatch([Span(tokens, 0, count, range(-(-count // BLOCK)))])
    said = runner.forward(batch, [0])[0]
    ids = torch.tensor([tokens], device=policy.device)
    expected = policy.forward(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
    distance = (said - expected.float()).norm() / expected.float().norm()
    return bool(distance < within)


def choose_runner(policy: TorchPolicy, spec: SamplerSpec) -> Runner:
    """The fastest runner for the policy's model here, or the one the spec insists on.

    ModelError where the spec asks for the native engine and it cannot be had.
    """
    memory = spec.memory_mb * _MEGABYTE
    bf16 = spec.dtype == "bf16" or (spec.dtype == "auto" and policy.autocasts)
    if spec.engine in ("auto", "native"):
        found = (
            kernels() if fits(policy) else Unavailable("it is not Llama-shaped, or not on a CPU")
        )
        if not isinstance(found, Unavailable):
            fused = FusedRunner(policy, found, bf16=bf16, memory=memory)
            if agrees(fused, policy, within=5e-2 if bf16 or policy.autocasts else 1e-3):
                return fused
            found = Unavailable("it computes something that the kernels do not")
        if spec.engine == "native":
            raise ModelError(
                f"the native engine cannot run this model: {found.reason}",
                where="sampler.engine",
                hint='use engine = "auto"',
            )
    shapes = cache_shapes(policy)
    if shapes is None:
        rows = spec.max_rows * (policy.context_length or 4096) // BLOCK
        return RecomputeRunner(policy, blocks=rows)
    return PagedRunner(policy, shapes, memory=memory, alone=spec.engine == "reference")
