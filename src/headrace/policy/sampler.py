"""Sampling from the policy in this process: batched continuously, cached in blocks, exact.

The fastest runner that fits the model is chosen: kernels of our own for Llama-shaped models on
a CPU, else the model's own code over a paged cache, else no cache at all. All of them draw the
same way from logits that agree.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from headrace.errors import ModelError, RecipeError
from headrace.policy.batching import Batching, ContinuousBatch, Decoder, Row, tail_blocks
from headrace.policy.blocks import BLOCK, BlockPool
from headrace.policy.engine import TorchPolicy
from headrace.policy.flat import FlatBatch, Runner, Span
from headrace.policy.fused import FusedRunner, fits
from headrace.policy.native import Unavailable, kernels
from headrace.policy.paged import PagedRunner, cache_shapes
from headrace.policy.recompute import RecomputeRunner
from headrace.protocols import Answer, Completion, SampleRequest
from headrace.recipe import SamplerSpec

__all__ = ["TorchSampler", "agrees", "choose_runner"]

OnProgress = Callable[[int, int], None]

_MEGABYTE = 1 << 20


@dataclass(slots=True)
class _Open:
    """A request in flight: its rows as they end, and the order in which they did."""

    ticket: int
    enough: int
    rows: list[Completion | None]
    order: list[int] = field(default_factory=list[int])

    def end(self, row: Row) -> None:
        self.rows[row.place] = row.completion()
        self.order.append(row.place)

    def answer(self) -> Answer:
        first = set(self.order[: self.enough])
        written = [(place, c) for place, c in enumerate(self.rows) if c is not None]
        return Answer(
            [c for place, c in written if place in first],
            [c for place, c in written if place not in first],
        )


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
        self._next = 0
        self._open: dict[int, _Open] = {}

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
        Requests that were submitted before go on beside these.
        """
        open_requests = [self._open[ticket] for ticket in self.submit(requests)]
        total = sum(len(request.seeds) for request in requests)
        told = 0
        try:
            while told < total:
                self._pass()
                done = sum(len(request.order) for request in open_requests)
                if done > told and on_progress is not None:
                    on_progress(done, total)
                told = done
        except BaseException:
            self._abandon()
            raise
        for request in open_requests:
            del self._open[request.ticket]
        return [request.answer().completions for request in open_requests]

    def submit(
        self, requests: Sequence[SampleRequest], *, enough: Sequence[int] | None = None
    ) -> list[int]:
        """Queue prompts beside those in flight; their tickets, which `advance` will name.

        A request is complete once `enough` of its sequences (None: all) have ended; the others
        are cancelled then. Refuses what `sample` refuses, all of the requests or none.
        """
        self._check(requests)
        self.update()
        wanted = [len(request.seeds) for request in requests] if enough is None else enough
        tickets: list[int] = []
        for request, count in zip(requests, wanted, strict=True):
            ticket, self._next = self._next, self._next + 1
            stops = self._policy.end_ids | set(request.params.stop_ids)
            self._open[ticket] = _Open(ticket, count, [None] * len(request.seeds))
            self._batch.submit(ticket, request.ids, request.seeds, request.params, stops)
            tickets.append(ticket)
        return tickets

    def advance(self) -> dict[int, Answer]:
        """One forward pass; the submitted requests that are complete with it, by ticket."""
        self.update()
        touched = self._pass()
        whole = [t for t in touched if len(self._open[t].order) >= self._open[t].enough]
        return {ticket: self._close(ticket) for ticket in whole}

    def cancel(self, ticket: int) -> None:
        """Take a request back."""
        self._close(ticket)

    @property
    def busy(self) -> bool:
        """Whether any submitted sequence is not finished."""
        return self._batch.busy

    @property
    def capacity(self) -> int:
        """How many sequences are in flight at most."""
        return self._spec.max_rows

    def _pass(self) -> list[int]:
        """One forward pass; the tickets of the sequences that ended, each once."""
        try:
            with self._gate, torch.inference_mode():
                ended = self._batch.step(self._policy.version)
        except BaseException:
            self._abandon()
            raise
        for row in ended:
            self._open[row.request].end(row)
        self._forget_if_idle()
        return list(dict.fromkeys(row.request for row in ended))

    def _abandon(self) -> None:
        self._batch.abandon()
        self._open.clear()

    def _close(self, ticket: int) -> Answer:
        request = self._open.pop(ticket)
        if len(request.order) < len(request.rows):
            for row in self._batch.cancel(ticket):
                request.rows[row.place] = row.completion()
            self._forget_if_idle()
        return request.answer()

    def _forget_if_idle(self) -> None:
        """What is found must not depend on earlier calls, unless it makes no difference."""
        if not self._batch.busy and not self._runner.invariant:
            self._pool.forget_all()

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
