"""Sampling from the policy: batched, cached, exact.

Whatever sequences share is computed once. Prompts are prefilled as prefix trees, a group's
prompt once for all of its attempts; attempts that have drawn the same tokens so far decode as
one branch, which late in training is most of them. Finished sequences leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
class _Branches:
    """The model's state for B distinct sequences still being written (left-padded).

    Rows that are token for token the same share a branch until their draws part them.
    """

    cache: Cache
    mask: Tensor
    positions: Tensor
    logits: Tensor

    def select(self, parents: Tensor) -> None:
        """Become the branches `parents` (indices into the current ones, repeats allowed)."""
        self.cache.batch_select_indices(parents)
        self.mask = self.mask[parents]
        self.positions = self.positions[parents]


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
        prompts, branch = _distinct([row.prompt.tobytes() for row in rows])
        batch = self._prefill([rows[i].prompt for i in prompts], params.max_new_tokens)
        alive = rows
        finished: list[_Row] = []
        for step in range(params.max_new_tokens):
            self._write(alive, branch, batch.logits, step, params)
            going: list[int] = []
            for index, row in enumerate(alive):
                if row.ids[-1] in stops:
                    row.stop_reason = "stop"
                elif step < params.max_new_tokens - 1:
                    going.append(index)
            finished += [row for index, row in enumerate(alive) if index not in set(going)]
            if not going:
                break
            first, new_branch = _distinct([(branch[i], alive[i].ids[-1]) for i in going])
            parents = [branch[going[i]] for i in first]
            tokens = [alive[going[i]].ids[-1] for i in first]
            alive, branch = [alive[i] for i in going], new_branch
            self._advance(batch, parents, tokens)
        return finished

    def _write(
        self, rows: list[_Row], branch: list[int], logits: Tensor, step: int, params: SamplingParams
    ) -> None:
        points = np.array([row.stream[step] for row in rows])
        drawn = draw(logits, np.array(branch), points, params)
        ids, logps = drawn.ids.tolist(), drawn.logps.tolist()
        for slot, row in enumerate(rows):
            row.ids.append(ids[slot])
            row.logps.append(logps[slot])
            if drawn.supports is not None:
                row.supports.append(drawn.supports[branch[slot]])

    def _advance(self, batch: _Branches, parents: list[int], tokens: list[int]) -> None:
        device = self._policy.device
        if parents != list(range(len(batch.positions))):
            batch.select(torch.tensor(parents, device=device))
        batch.mask = torch.cat([batch.mask, torch.ones_like(batch.mask[:, :1])], dim=1)
        out = self._policy.forward(
            input_ids=torch.tensor(tokens, device=device)[:, None],
            attention_mask=batch.mask,
            position_ids=batch.positions[:, None],
            cache=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        batch.positions = batch.positions + 1
        batch.logits = out.logits[:, -1].float()

    # --- prefill -------------------------------------------------------------------------

    def _prefill(self, prompts: list[Ids], room: int) -> _Branches:
        """One branch for each of the distinct `prompts`, with `room` for new tokens."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        width = int(lengths.max())
        mask = (torch.arange(width) >= width - lengths[:, None]).long().to(self._policy.device)
        if self._policy.supports_trees:
            cache, logits = self._prefill_trees(prompts, width, room)
        else:
            cache, logits = self._prefill_padded(prompts, mask)
        return _Branches(cache, mask, lengths.to(self._policy.device), logits)

    def _prefill_trees(self, prompts: list[Ids], width: int, room: int) -> tuple[Cache, Tensor]:
        trees: list[tuple[Cache, Tensor]] = []
        order: list[int] = []
        logits: list[Tensor] = []
        for members, tree in chunks(prompts, PREFILL_TOKENS):
            nodes = torch.zeros(len(members), width, dtype=torch.int64)
            for slot, path in enumerate(tree.paths):
                nodes[slot, width - len(path) :] = torch.from_numpy(path)
            cache, last = self._run_tree(tree)
            trees.append((cache, nodes.to(self._policy.device)))
            logits.append(last)
            order += members
        cache = rows_of_trees(trees, room)
        back = torch.tensor(np.argsort(order), device=self._policy.device)
        cache.batch_select_indices(back)
        return cache, torch.cat(logits)[back]

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

    def _prefill_padded(self, prompts: list[Ids], mask: Tensor) -> tuple[Cache, Tensor]:
        width = mask.shape[1]
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        for slot, prompt in enumerate(prompts):
            ids[slot, width - len(prompt) :] = torch.from_numpy(prompt)
        out = self._policy.forward(
            input_ids=ids.to(self._policy.device),
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp_min(0),
            cache=DynamicCache(config=self._policy.config),
            use_cache=True,
            logits_to_keep=1,
        )
        return out.cache, out.logits[:, -1].float()


def _distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """The index of each distinct key's first appearance, and which of them each key is."""
    numbers: dict[Hashable, int] = {}
    first: list[int] = []
    for index, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(first)
            first.append(index)
    return first, [numbers[key] for key in keys]
