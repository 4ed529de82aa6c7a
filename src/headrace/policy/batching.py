"""Continuous batching: a finished sequence leaves, a waiting one takes its place.

Attempts of one prompt that have drawn the same tokens so far are one branch, computed once;
where their draws part, the branch forks and the full blocks of its cache stay shared. Rows are
admitted only if the blocks they could ever need are there, so nothing is ever thrown out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from headrace.policy.blocks import BLOCK, BlockPool
from headrace.policy.draw import Uniforms, draw, uniforms
from headrace.policy.flat import FlatBatch, Runner, Span
from headrace.protocols import Completion, SamplingParams
from headrace.types import Ids, StopReason, Support, VersionSpan

__all__ = ["Batching", "ContinuousBatch", "Row", "tail_blocks"]


class Decoder(Protocol):
    """The text of token ids, special tokens included."""

    def decode(self, token_ids: Sequence[int], /) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Bounds of one forward pass and what may be shared.

    At most `max_rows` sequences are in flight; prompts are prefilled `chunk` tokens at a time.
    `isolated` makes chunks independent of neighbours and shares nothing between requests, for
    runners that compute every sequence alone.
    """

    max_rows: int = 256
    chunk: int = 1024
    isolated: bool = False


@dataclass(slots=True, eq=False)
class _Admission:
    """The blocks of a prompt, promised until the last of its rows has ended."""

    blocks: int
    rows: int


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One sequence being written: which request and seed it answers, and what is there so far."""

    request: int
    place: int
    seed: int
    params: SamplingParams
    stops: frozenset[int]
    reserved: int
    stream: Uniforms
    admission: _Admission | None = None
    ids: list[int] = field(default_factory=list[int])
    logps: list[float] = field(default_factory=list[float])
    versions: list[VersionSpan] = field(default_factory=list[VersionSpan])
    supports: list[Ids] = field(default_factory=list[Ids])
    stop_reason: StopReason | None = None

    def write(self, token: int, logp: float, version: int) -> None:
        self.ids.append(token)
        self.logps.append(logp)
        if self.versions and self.versions[-1].version == version:
            last = self.versions.pop()
            self.versions.append(VersionSpan(version, last.count + 1))
        else:
            self.versions.append(VersionSpan(version, 1))

    def completion(self) -> Completion:
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
            versions=tuple(self.versions),
            stop_reason=self.stop_reason or "length",
            seed=self.seed,
            support=support,
        )


@dataclass(slots=True, eq=False)
class _Waiting:
    """A prompt with the rows that still wait for room."""

    prompt: list[int]
    rows: deque[Row]


@dataclass(slots=True, eq=False)
class _Branch:
    """Rows that are token for token the same: `tokens`, of which `stored` are in the cache.

    `node` stands for the first `indexed` blocks in the index of prefixes; None once the cache
    holds what an older model computed.
    """

    tokens: list[int]
    stored: int
    blocks: list[int]
    rows: list[Row]
    node: int | None
    indexed: int

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.stored


def tail_blocks(prompt: int, new: int) -> int:
    """Blocks that one sequence of `new` tokens may need beside its prompt's full ones."""
    return -(-(prompt % BLOCK + new) // BLOCK)


class ContinuousBatch:
    """Sequences in flight over one runner; `submit`, then `step` until nothing is `busy`."""

    def __init__(
        self, runner: Runner, pool: BlockPool, batching: Batching, decoder: Decoder | None
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._batching = batching
        self._decoder = decoder
        self._waiting: deque[_Waiting] = deque()
        self._branches: list[_Branch] = []
        self._doomed: set[int] = set()
        self._rows = 0
        self._committed = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._branches)

    def submit(
        self,
        request: int,
        prompt: Ids,
        seeds: Sequence[int],
        params: SamplingParams,
        stops: frozenset[int],
    ) -> None:
        """Queue one prompt, to be continued once for each seed."""
        reserved = tail_blocks(len(prompt), params.max_new_tokens)
        rows = deque(
            Row(
                request=request,
                place=place,
                seed=seed,
                params=params,
                stops=stops,
                reserved=reserved,
                stream=uniforms(seed, params.max_new_tokens),
            )
            for place, seed in enumerate(seeds)
        )
        if rows:
            self._waiting.append(_Waiting(prompt.tolist(), rows))

    def step(self, version: int) -> list[Row]:
        """One forward pass and one token for every sequence that got its logits.

        `version` is what the tokens drawn now are labelled with; rows that ended are returned.
        """
        self._admit()
        chosen = self._plan()
        batch = FlatBatch(
            [Span(b.tokens, b.stored, count, b.blocks) for b, count in chosen],
        )
        ready = [i for i, (branch, count) in enumerate(chosen) if branch.pending == count]
        logits = self._runner.forward(batch, ready)
        for branch, count in chosen:
            branch.stored += count
            self._index(branch, branch.stored // BLOCK)
        ended = self._write([chosen[i][0] for i in ready], logits, version)
        return self._without_doomed(ended)

    def _without_doomed(self, ended: list[Row]) -> list[Row]:
        """The rows that somebody waits for; cancelled ones go once their prompt is computed."""
        if not self._doomed:
            return ended
        mine = [b for b in self._branches if b.rows[0].request in self._doomed]
        for branch in [b for b in mine if b.pending == 1]:
            self._drop(branch)
        kept = [row for row in ended if row.request not in self._doomed]
        self._doomed &= {b.rows[0].request for b in self._branches}
        return kept

    def cancel(self, request: int) -> list[Row]:
        """Let go of a request's rows; those that were still waiting or being written.

        A prompt that is being computed is computed to its end, for others may have found it.
        """
        gone: list[Row] = []
        for waiting in [w for w in self._waiting if w.rows[0].request == request]:
            gone += waiting.rows
            self._waiting.remove(waiting)
        for branch in [b for b in self._branches if b.rows[0].request == request]:
            gone += branch.rows
            if branch.pending > 1:
                self._doomed.add(request)
            else:
                self._drop(branch)
        return gone

    def _drop(self, branch: _Branch) -> None:
        for row in branch.rows:
            self._leave(row)
        self._pool.release(branch.blocks)
        self._branches.remove(branch)

    def abandon(self) -> None:
        """Let go of everything in flight."""
        for branch in self._branches:
            self._pool.release(branch.blocks)
        self._branches.clear()
        self._waiting.clear()
        self._doomed.clear()
        self._rows = self._committed = 0
        self._pool.forget_all()  # some of what was findable may never have been computed

    def forget(self) -> None:
        """The weights changed: nothing cached so far is found by what comes later."""
        self._pool.forget_all()
        for branch in self._branches:
            branch.node = None

    # --- admission -----------------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting rows in order, as far as rows and blocks go."""
        while self._waiting:
            waiting = self._waiting[0]
            admission = _Admission(blocks=len(waiting.prompt) // BLOCK, rows=0)
            needed = admission.blocks
            fitting: list[Row] = []
            while waiting.rows and self._rows + len(fitting) < self._batching.max_rows:
                row = waiting.rows[0]
                if self._committed + needed + row.reserved > self._pool.size:
                    break
                row.admission = admission
                needed += row.reserved
                fitting.append(waiting.rows.popleft())
            if fitting:
                admission.rows = len(fitting)
                self._committed += needed
                self._rows += len(fitting)
                self._branches.append(self._start(waiting.prompt, fitting))
            if waiting.rows:
                return
            self._waiting.popleft()

    def _start(self, prompt: list[int], rows: list[Row]) -> _Branch:
        branch = _Branch(list(prompt), 0, [], rows, None, 0)
        if self._batching.isolated:
            return branch
        # the last token is always computed: its logits are wanted
        found = self._pool.find(prompt, limit=len(prompt) - 1)
        self._pool.share(found.blocks)
        branch.blocks = list(found.blocks)
        branch.stored = len(found.blocks) * BLOCK
        branch.node, branch.indexed = found.node, len(found.blocks)
        # findable at once: whoever finds these blocks is computed after or along with them
        branch.blocks += [self._pool.take() for _ in range(branch.indexed, len(prompt) // BLOCK)]
        self._index(branch, len(branch.blocks))
        return branch

    def _index(self, branch: _Branch, full: int) -> None:
        """Make the first `full` blocks of the branch findable."""
        if branch.node is None:
            return
        for number in range(branch.indexed, full):
            tokens = branch.tokens[number * BLOCK : (number + 1) * BLOCK]
            branch.node = self._pool.register(branch.node, tokens, branch.blocks[number])
        branch.indexed = max(branch.indexed, full)

    # --- a forward pass ------------------------------------------------------------------

    def _plan(self) -> list[tuple[_Branch, int]]:
        """How many tokens of which branch are computed now.

        Every decoding branch's one, then prompts in the order of their admission.
        """
        chosen = [(branch, 1) for branch in self._branches if branch.pending == 1]
        room = self._batching.chunk
        for branch in self._branches:
            if branch.pending == 1:
                continue
            count = min(branch.pending, room)
            if count == 0:
                break
            chosen.append((branch, count))
            if not self._batching.isolated:
                room -= count
        for branch, count in chosen:
            while len(branch.blocks) * BLOCK < branch.stored + count:
                branch.blocks.append(self._pool.take())
        return chosen

    # --- drawing -------------------------------------------------------------------------

    def _write(self, branches: list[_Branch], logits: Tensor, version: int) -> list[Row]:
        """Draw a token for every row of `branches` [B], whose next-token `logits` are [B, V]."""
        by_params: dict[SamplingParams, list[int]] = {}
        for index, branch in enumerate(branches):
            by_params.setdefault(branch.rows[0].params, []).append(index)
        ended: list[Row] = []
        for params, members in by_params.items():
            rows = [row for index in members for row in branches[index].rows]
            owner = np.repeat(np.arange(len(members)), [len(branches[i].rows) for i in members])
            uniform = np.array([row.stream[len(row.ids)] for row in rows])
            part = logits if len(members) == len(branches) else logits[members]
            drawn = draw(part, owner, uniform, params)
            for place, (row, token, logp) in enumerate(
                zip(rows, drawn.ids.tolist(), drawn.logps.tolist(), strict=True)
            ):
                row.write(token, logp, version)
                if drawn.supports is not None:
                    row.supports.append(drawn.supports[owner[place]])
        for branch in branches:
            ended += self._advance(branch)
        return ended

    def _advance(self, branch: _Branch) -> list[Row]:
        """Part the rows of a branch by the token each has drawn; those that ended leave."""
        going: dict[int, list[Row]] = {}
        ended: list[Row] = []
        for row in branch.rows:
            row.stop_reason = self._reason(row)
            if row.stop_reason is None:
                going.setdefault(row.ids[-1], []).append(row)
            else:
                ended.append(row)
                self._leave(row)
        tokens = list(going)
        for token in tokens[1:]:
            self._branches.append(self._fork(branch, token, going[token]))
        if tokens:
            branch.tokens.append(tokens[0])
            branch.rows = going[tokens[0]]
        else:
            self._pool.release(branch.blocks)
            self._branches.remove(branch)
        return ended

    def _fork(self, branch: _Branch, token: int, rows: list[Row]) -> _Branch:
        """A branch of its own for `rows`: full blocks are shared, a partial one is copied."""
        full = branch.stored // BLOCK
        blocks = branch.blocks[:full]
        self._pool.share(blocks)
        if branch.stored % BLOCK:
            copy = self._pool.take()
            self._runner.copy_block(branch.blocks[full], copy)
            blocks.append(copy)
        tokens = [*branch.tokens, token]
        return _Branch(tokens, branch.stored, blocks, rows, branch.node, branch.indexed)

    def _leave(self, row: Row) -> None:
        assert row.admission is not None
        self._rows -= 1
        self._committed -= row.reserved
        row.admission.rows -= 1
        if row.admission.rows == 0:
            self._committed -= row.admission.blocks

    def _reason(self, row: Row) -> StopReason | None:
        if row.ids[-1] in row.stops or self._has_said(row):
            return "stop"
        return "length" if len(row.ids) == row.params.max_new_tokens else None

    def _has_said(self, row: Row) -> bool:
        """Whether the last token completed a stop string (checked at every token)."""
        strings = row.params.stop_strings
        if not strings or self._decoder is None:
            return False
        # a token is at least a byte and a character at most four
        reach = 4 * max(map(len, strings)) + 8
        text = self._decoder.decode(row.ids[-reach:])
        return any(string in text for string in strings)
