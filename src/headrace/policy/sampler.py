"""Sampling from the policy: batched, cached, exact.

Prompts are prefilled as prefix trees (what prompts share is computed once, a group's prompt
once for all of its attempts), then all rows decode together; finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from headrace.errors import RecipeError
from headrace.policy.draw import Uniforms, draw, uniforms
from headrace.policy.engine import TorchPolicy, attention_mask
from headrace.policy.kv import rows_of_trees
from headrace.policy.tree import TokenTree, chunks
from headrace.protocols import Completion, SampleRequest, SamplingParams
from headrace.types import Ids, StopReason, Support, VersionSpan

OnProgress = Callable[[int, int], None]

PREFILL_TOKENS = 1024


@dataclass(slots=True)
class _Row:
    """One sequence being written: request and seed index, and what is there so far."""

    request: int
    place: int
    prompt: Ids
    seed: int
    stream: Uniforms
    ids: list[int] = field(default_factory=list[int])
    logps: list[float] = field(default_factory=list[float])
    supports: list[Ids] = field(default_factory=list[Ids])
    stop_reason: StopReason | None = None

    def completion(self, version: int) -> Completion:
        support = None
        if self.supports:
            lengths = [len(row) for row in self.supports]
            support = Support(
                offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                ids=np.concatenate(self.supports).astype(np.int32),
            )
        return Completion(
            ids=np.array(self.ids, dtype=np.int32),
            logps=np.array(self.logps, dtype=np.float32),
            versions=(VersionSpan(version, len(self.ids)),) if self.ids else (),
            stop_reason=self.stop_reason or "length",
            seed=self.seed,
            support=support,
        )


@dataclass(slots=True)
class _Batch:
    """The model's state for the rows still being written (left-padded)."""

    cache: Cache
    mask: Tensor
    positions: Tensor
    logits: Tensor

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]
        self.positions = self.positions[rows]


class TorchSampler:
    """The `Sampler` over a policy in this process.

    `max_rows` bounds the sequences decoded together. The same requests in the same order give
    the same tokens on the same machine with the same number of threads.
    """

    def __init__(self, policy: TorchPolicy, *, max_rows: int = 256) -> None:
        self._policy = policy
        self._max_rows = max_rows

    @property
    def version(self) -> int:
        return self._policy.version

    def sample(
        self, requests: Sequence[SampleRequest], *, on_progress: OnProgress | None = None
    ) -> list[list[Completion]]:
        """Continue each prompt once for each of its seeds; `out[i][j]` used seed j.

        `on_progress(done, total)` counts finished sequences. A prompt that leaves no room for
        `max_new_tokens` in the model's context is a RecipeError.
        """
        self._check(requests)
        total = sum(len(request.seeds) for request in requests)
        results: list[list[Completion | None]] = [[None] * len(r.seeds) for r in requests]
        done = 0
        self._policy.model.eval()
        with torch.inference_mode():
            for params, batch in self._batches(requests):
                for row in self._decode(batch, params):
                    results[row.request][row.place] = row.completion(self.version)
                    done += 1
                    if on_progress is not None:
                        on_progress(done, total)
        return [[c for c in row if c is not None] for row in results]

    def _check(self, requests: Sequence[SampleRequest]) -> None:
        limit = self._policy.context_length
        for request in requests:
            if len(request.ids) == 0:
                raise ValueError("a prompt needs at least one token")
            needed = len(request.ids) + request.params.max_new_tokens
            if limit is not None and needed > limit:
                raise RecipeError(
                    f"a prompt of {len(request.ids)} tokens and {request.params.max_new_tokens} "
                    f"new ones do not fit the model's context of {limit}",
                    where="play.max_new_tokens",
                    hint="lower play.max_new_tokens, or limit the domain with last_tier",
                )

    def _batches(
        self, requests: Sequence[SampleRequest]
    ) -> list[tuple[SamplingParams, list[_Row]]]:
        """Rows in request order, cut where the parameters change or the batch is full."""
        batches: list[tuple[SamplingParams, list[_Row]]] = []
        for index, request in enumerate(requests):
            for place, seed in enumerate(request.seeds):
                stream = uniforms(seed, request.params.max_new_tokens)
                row = _Row(index, place, request.ids, seed, stream)
                fits = batches and len(batches[-1][1]) < self._max_rows
                if fits and batches[-1][0] == request.params:
                    batches[-1][1].append(row)
                else:
                    batches.append((request.params, [row]))
        return batches

    # --- decoding ------------------------------------------------------------------------

    def _decode(self, rows: list[_Row], params: SamplingParams) -> Sequence[_Row]:
        stops = self._policy.end_ids | set(params.stop_ids)
        batch = self._prefill(rows, params.max_new_tokens)
        alive = list(range(len(rows)))
        finished: list[_Row] = []
        for step in range(params.max_new_tokens):
            last = step == params.max_new_tokens - 1
            tokens = self._draw_step([rows[i] for i in alive], batch.logits, step, params)
            open_now: list[int] = []
            for slot, index in enumerate(alive):
                row = rows[index]
                if row.ids[-1] in stops:
                    row.stop_reason = "stop"
                elif last:
                    row.stop_reason = "length"
                else:
                    open_now.append(slot)
            finished += [rows[alive[s]] for s in range(len(alive)) if s not in set(open_now)]
            if not open_now:
                break
            if len(open_now) < len(alive):
                kept = torch.tensor(open_now, device=self._policy.device)
                batch.keep(kept)
                tokens = tokens[kept]
                alive = [alive[slot] for slot in open_now]
            self._advance(batch, tokens)
        return finished

    def _draw_step(
        self, rows: list[_Row], logits: Tensor, step: int, params: SamplingParams
    ) -> Tensor:
        points = np.array([row.stream[step] for row in rows])
        drawn = draw(logits, points, params)
        ids, logps = drawn.ids.tolist(), drawn.logps.tolist()
        for slot, row in enumerate(rows):
            row.ids.append(ids[slot])
            row.logps.append(logps[slot])
            if drawn.supports is not None:
                row.supports.append(drawn.supports[slot])
        return drawn.ids

    def _advance(self, batch: _Batch, tokens: Tensor) -> None:
        ones = torch.ones_like(batch.mask[:, :1])
        batch.mask = torch.cat([batch.mask, ones], dim=1)
        out = self._policy.forward(
            input_ids=tokens[:, None],
            attention_mask=batch.mask,
            position_ids=batch.positions[:, None],
            cache=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        batch.positions = batch.positions + 1
        batch.logits = out.logits[:, -1].float()

    # --- prefill -------------------------------------------------------------------------

    def _prefill(self, rows: list[_Row], room: int) -> _Batch:
        lengths = torch.tensor([len(row.prompt) for row in rows])
        width = int(lengths.max())
        mask = (torch.arange(width) >= width - lengths[:, None]).long()
        build = self._prefill_trees if self._policy.supports_trees else self._prefill_padded
        cache, logits = build(rows, width, room)
        device = self._policy.device
        return _Batch(cache, mask.to(device), lengths.to(device), logits)

    def _prefill_trees(self, rows: list[_Row], width: int, room: int) -> tuple[Cache, Tensor]:
        unique = _unique_prompts(rows)
        trees: list[tuple[Cache, Tensor]] = []
        order: list[int] = []
        logits: list[Tensor] = []
        for members, tree in chunks([rows[u[0]].prompt for u in unique], PREFILL_TOKENS):
            cache, last = self._run_tree(tree)
            nodes: list[Tensor] = []
            for member, path in zip(members, tree.paths, strict=True):
                padded = torch.zeros(width, dtype=torch.int64)
                padded[width - len(path) :] = torch.from_numpy(path)
                nodes += [padded] * len(unique[member])
                order += unique[member]
            counts = torch.tensor([len(unique[m]) for m in members])
            logits.append(last.repeat_interleave(counts.to(last.device), dim=0))
            trees.append((cache, torch.stack(nodes).to(self._policy.device)))
        cache = rows_of_trees(trees, room)
        inverse = torch.tensor(np.argsort(order), device=self._policy.device)
        if order != sorted(order):
            cache.batch_select_indices(inverse)
        return cache, torch.cat(logits)[inverse]

    def _run_tree(self, tree: TokenTree) -> tuple[Cache, Tensor]:
        """Cache of the flattened tree, and the logits after each path's last node."""
        device = self._policy.device
        mask = None
        if tree.branches:
            visible = torch.from_numpy(tree.visible()).to(device)
            mask = attention_mask(visible, self._policy.config._attn_implementation)
        last = torch.tensor([int(path[-1]) for path in tree.paths], device=device)
        out = self._policy.forward(
            input_ids=torch.from_numpy(tree.ids).long().to(device)[None],
            attention_mask=mask,
            position_ids=torch.from_numpy(tree.depth).to(device)[None],
            cache=DynamicCache(config=self._policy.config),
            use_cache=True,
            logits_to_keep=last,
        )
        return out.cache, out.logits[0].float()

    def _prefill_padded(self, rows: list[_Row], width: int, room: int) -> tuple[Cache, Tensor]:
        del room  # this cache grows by itself
        unique = _unique_prompts(rows)
        device = self._policy.device
        ids = torch.zeros(len(unique), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        which = torch.zeros(len(rows), dtype=torch.int64)
        for slot, members in enumerate(unique):
            prompt = rows[members[0]].prompt
            ids[slot, width - len(prompt) :] = torch.from_numpy(prompt)
            mask[slot, width - len(prompt) :] = 1
            which[members] = slot
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
        out = self._policy.forward(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            cache=DynamicCache(config=self._policy.config),
            use_cache=True,
            logits_to_keep=1,
        )
        which = which.to(device)
        out.cache.batch_select_indices(which)
        return out.cache, out.logits[:, -1].float()[which]


def _unique_prompts(rows: list[_Row]) -> list[list[int]]:
    """Indices of the rows of each distinct prompt, in order of first appearance."""
    found: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(row.prompt.tobytes(), []).append(index)
    return list(found.values())
