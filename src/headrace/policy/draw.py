"""Drawing tokens exactly: temperature, filters, one uniform number a token.

The distribution that is sampled from is the one whose log-probabilities are reported: after
temperature, top-k, top-p and min-p, renormalised over what survives. A draw inverts the
cumulative distribution in token-id order at one uniform number, and each sequence has a
counter-based stream of its own (Philox 4x64, Salmon et al. 2011), so its randomness depends
on its seed and position only, never on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.protocols import SamplingParams
from headrace.types import Ids

Uniforms = npt.NDArray[np.float64]
_PAGE = 256


@dataclass(frozen=True, slots=True)
class Draw:
    """A token for each of R rows: `ids`, `logps` [R]; `supports`, under filters only, [B]."""

    ids: Tensor
    logps: Tensor
    supports: tuple[Ids, ...] | None


def uniforms(seed: int, count: int) -> Uniforms:
    """The first `count` numbers in [0, 1) of the stream of `seed` (0..2**64 - 1)."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def log_distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Log-probabilities [R, V] of the distribution tokens are drawn from.

    Filtered tokens have -inf. top-p keeps the smallest set of most likely tokens whose mass
    reaches top_p (Holtzman et al. 2020); min-p keeps tokens of at least min_p times the
    largest probability (Nguyen et al. 2024). Ties at the top-k boundary are all kept.
    """
    logps = torch.log_softmax(logits.float() / params.temperature, dim=-1)
    if not is_filtered(params):
        return logps
    keep = torch.ones_like(logps, dtype=torch.bool)
    if 0 < params.top_k < logps.shape[-1]:
        kth = torch.topk(logps, params.top_k, dim=-1).values[:, -1:]
        keep &= logps >= kth
    if params.top_p < 1.0:
        masked = logps.masked_fill(~keep, -torch.inf)
        ordered, order = torch.sort(masked, dim=-1, descending=True, stable=True)
        probs = torch.softmax(ordered, dim=-1)
        before = probs.cumsum(dim=-1) - probs
        keep &= torch.zeros_like(keep).scatter(1, order, before < params.top_p)
    if params.min_p > 0.0:
        masked = logps.masked_fill(~keep, -torch.inf)
        floor = masked.max(dim=-1, keepdim=True).values + float(np.log(params.min_p))
        keep &= logps >= floor
    kept = logps.masked_fill(~keep, -torch.inf)
    return kept - torch.logsumexp(kept, dim=-1, keepdim=True)


def draw(
    logits: Tensor, branch: npt.NDArray[np.int64], uniform: Uniforms, params: SamplingParams
) -> Draw:
    """Draw R tokens from B distributions `logits` [B, V]: row r from `branch[r]` at `uniform[r]`.

    temperature 0 takes the most likely token (the first among equals); its distribution is a
    point, so its log-probability is 0.
    """
    which = torch.from_numpy(branch).to(logits.device)
    if params.temperature == 0.0:
        ids = logits.argmax(dim=-1)[which]
        return Draw(ids=ids, logps=torch.zeros(len(ids)), supports=None)
    filtered = is_filtered(params)
    if filtered:
        scores = log_distribution(logits, params)
    else:
        scores = logits if params.temperature == 1.0 else logits / params.temperature
    top = scores.max(dim=-1, keepdim=True).values
    mass = _in_pages(torch.exp(scores - top))
    ids, total = _invert(mass, which, torch.from_numpy(uniform).to(logits.device))
    logps = scores[which, ids].double() - top[which, 0].double() - total.log()
    supports = None
    if filtered:
        kept = torch.isfinite(scores).cpu()
        supports = tuple(row.nonzero()[:, 0].numpy().astype(np.int32) for row in kept)
    return Draw(ids=ids, logps=logps.float(), supports=supports)


def _in_pages(mass: Tensor) -> Tensor:
    """[B, V] -> [B, P, _PAGE], the last page filled up with zeros."""
    missing = -mass.shape[1] % _PAGE
    if missing:
        mass = torch.nn.functional.pad(mass, (0, missing))
    return mass.view(len(mass), -1, _PAGE)


def _invert(mass: Tensor, which: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The token of each row at `uniform` [R], and the total mass it is a share of [R].

    First the page is found in which the cumulative mass passes the point, then the token in
    that page: two short searches instead of a running sum over the whole vocabulary.
    """
    pages = mass.sum(dim=-1).double().cumsum(dim=-1)[which]
    total = pages[:, -1]
    page, rest = _place(pages, uniform * total)
    inside = mass[which, page].double().cumsum(dim=-1)
    within, _ = _place(inside, torch.minimum(rest, inside[:, -1]))
    return page * _PAGE + within, total


def _place(cumulative: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Which of n cells [R, n] holds each point [R], and how far into the cell it lies.

    A cell without mass is never chosen, even where rounding puts the point at the very end.
    """
    end = cumulative[:, -1]
    points = torch.minimum(points, torch.nextafter(end, torch.zeros_like(end)))
    cell = torch.searchsorted(cumulative, points[:, None], right=True)
    before = torch.where(cell > 0, cumulative.gather(1, (cell - 1).clamp_min(0)), 0.0)
    return cell[:, 0], points - before[:, 0]
