"""A step in numbers: what goes into the event log and onto the console line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from headrace.algorithms.credit import Credit
from headrace.data.source import DomainStatus
from headrace.environments.single_turn import Group
from headrace.pipeline.study import Studied
from headrace.protocols import (
    Completion,
    LearnerReport,
    PreferenceReport,
    RankingReport,
    UpdateReport,
)
from headrace.types import Json, Trajectory

__all__ = [
    "Surplus",
    "domain_payload",
    "entropy_of",
    "lag_payload",
    "learning_payload",
    "play_payload",
    "study_payload",
]


def play_payload(trajectories: Sequence[Trajectory]) -> dict[str, Json]:
    """What the attempts of a step were like: reward, length, truncation, tokens."""
    scores = np.array([t.score for t in trajectories if t.score is not None])
    lengths = np.array([t.sampled_tokens for t in trajectories])
    truncated = sum(t.ending == "truncated" for t in trajectories)
    return {
        "reward": _distribution(
            scores, sum(t.verdict is not None and t.verdict.solved for t in trajectories)
        ),
        "length": {
            "mean": float(lengths.mean()),
            "p50": float(np.percentile(lengths, 50)),
            "p95": float(np.percentile(lengths, 95)),
        },
        "truncated": truncated / len(trajectories),
        "entropy": entropy_of(trajectories),
        "samples": len(trajectories),
        "sampled_tokens": int(lengths.sum()),
    }


def _distribution(scores: np.ndarray, solved: int) -> Json:
    if not len(scores):
        return None
    spread = float(scores.std(ddof=1)) if len(scores) > 1 else 0.0
    return {
        "mean": float(scores.mean()),
        "stderr": spread / math.sqrt(len(scores)),
        "p10": float(np.percentile(scores, 10)),
        "p50": float(np.percentile(scores, 50)),
        "p90": float(np.percentile(scores, 90)),
        "solved": solved / len(scores),
    }


def entropy_of(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean of -log p over all sampled tokens: an unbiased estimate of the policy's entropy.

    In nats per token, of the distribution tokens are drawn from. None without tokens.
    """
    logps = [turn.logps for t in trajectories for turn in t.turns if len(turn.logps)]
    return -float(np.concatenate(logps).mean(dtype=np.float64)) if logps else None


def learning_payload(
    credit: Credit, reports: Sequence[LearnerReport], updates: Sequence[UpdateReport]
) -> dict[str, Json]:
    """What credit and the updates of a step were like; None where there was no update."""
    tokens = sum(report.tokens for report in reports)

    def mean(values: Sequence[float]) -> float | None:
        weights = [report.tokens for report in reports]
        if not tokens:
            return None
        return sum(v * w for v, w in zip(values, weights, strict=True)) / tokens

    return {
        "credit": {
            "groups": credit.groups,
            "with_spread": credit.groups_with_spread,
            "unscored": credit.unscored,
            "empty": credit.empty,
            "trained": credit.trained,
            "informative": credit.informative,
            "advantage": asdict(credit.advantage),
            "overlong_penalty": credit.penalty,
        },
        "kl_reference": credit.reference_kl,
        "kl_behaviour": mean([report.kl_behaviour for report in reports]),
        "clipped_share": mean([report.clipped_share for report in reports]),
        "corrected_share": mean([report.corrected_share for report in reports]),
        "effective_share": mean([report.effective_share for report in reports]),
        "ratio_mean": mean([report.ratio_mean for report in reports]),
        "ratio_max": max((report.ratio_max for report in reports), default=None),
        "loss": mean([report.loss for report in reports]),
        "gradient_norm": max((update.gradient_norm for update in updates), default=None),
        "learning_rate": updates[-1].learning_rate if updates else None,
        "trained_tokens": tokens,
    }


def study_payload(studied: Studied) -> dict[str, Json]:
    """What a step on recorded data was like; of pairs, how far apart and how likely they are."""
    report = studied.report
    payload: dict[str, Json] = {
        "loss": report.loss,
        "components": dict(report.components),
        "units": len(studied.units),
        "trained_tokens": studied.tokens,
        "replay": sum(example.replay for unit in studied.units for example in unit)
        / sum(len(unit) for unit in studied.units),
        "gradient_norm": studied.update.gradient_norm,
        "learning_rate": studied.update.learning_rate,
    }
    if isinstance(report, RankingReport):
        payload |= {
            "accuracy": report.accuracy,
            "margin": report.margin,
            "chosen_reward": report.chosen_score,
            "rejected_reward": report.rejected_score,
        }
    if isinstance(report, PreferenceReport):
        payload |= {
            "accuracy": report.accuracy,
            "margin": report.margin,
            "chosen_reward": report.chosen_reward,
            "rejected_reward": report.rejected_reward,
            "chosen_logp": report.chosen_logp,
            "rejected_logp": report.rejected_logp,
        }
    return payload


def lag_payload(trajectories: Sequence[Trajectory], version: int) -> dict[str, Json]:
    """How many versions older than the weights trained on, `version`, the sampled tokens are.

    Mean over tokens and the largest; a token of a lost future of the run counts as new.
    """
    spans = [span for t in trajectories for turn in t.turns for span in turn.versions]
    tokens = sum(span.count for span in spans)
    lags = [max(0, version - span.version) for span in spans]
    weighted = sum(lag * span.count for lag, span in zip(lags, spans, strict=True))
    return {"mean": weighted / tokens if tokens else 0.0, "max": max(lags, default=0)}


class Surplus:
    """Attempts that were begun and cancelled because enough siblings had ended, and the bias.

    What is kept of a group is what ended first: the mean length of all that were begun is at
    least that of kept ones and cancelled ones as far as these were written.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []

    def note(self, group: Group, cancelled: Sequence[Completion]) -> None:
        del group
        self._lengths += [len(completion.ids) for completion in cancelled]

    def timing(self, kept: Sequence[Trajectory]) -> dict[str, float]:
        """Since the last call: attempts and tokens cancelled, and by how many tokens at least
        the attempts that are kept are too short on average."""
        cancelled, self._lengths = self._lengths, []
        if not cancelled or not kept:
            return {}
        lengths = [t.sampled_tokens for t in kept]
        mean = sum(lengths) / len(lengths)
        whole = (sum(lengths) + sum(cancelled)) / (len(lengths) + len(cancelled))
        return {
            "cancelled": float(len(cancelled)),
            "cancelled_tokens": float(sum(cancelled)),
            "length_bias": whole - mean,
        }


def domain_payload(
    trajectories: Sequence[Trajectory], status: Mapping[str, DomainStatus]
) -> dict[str, Json]:
    """Per domain: this step's attempts and pass rate, its tier now, its share of all tasks."""
    found: dict[str, list[Trajectory]] = {name: [] for name in status}
    for trajectory in trajectories:
        found[trajectory.task.domain].append(trajectory)
    payload: dict[str, Json] = {}
    for name, attempts in found.items():
        scored = [t.verdict for t in attempts if t.verdict is not None and t.score is not None]
        payload[name] = {
            "attempts": len(attempts),
            "scored": len(scored),
            "pass_rate": sum(v.solved for v in scored) / len(scored) if scored else None,
            "pass_rate_so_far": status[name].pass_rate,
            "tier": status[name].tier,
            "tiers": status[name].tiers,
            "share": status[name].share,
        }
    return payload
