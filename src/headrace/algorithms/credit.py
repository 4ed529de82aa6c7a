"""Credit: from the judged trajectories of a step to the weighted samples of its updates.

Everything that depends on more than one attempt is settled here: baselines, whitening,
denominators, the split into optimizer batches. What comes out is a plain sum to a learner.

Rows are identified by (group, attempt) and handled in that order, so the order in which
trajectories arrive changes nothing, not even the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.algorithms import advantages
from headrace.algorithms.advantages import Doubles, has_spread
from headrace.algorithms.aggregation import token_weights
from headrace.algorithms.critic import Estimates, gae
from headrace.algorithms.shaping import k1, k3_mean, overlong_penalty
from headrace.errors import NumericalError
from headrace.recipe import AlgorithmSpec
from headrace.types import Floats, ImagePart, Sample, Support, Trajectory, Turn

__all__ = ["AdvantageSummary", "Credit", "Lesson", "assemble", "credit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSummary:
    """Token advantages over everything in the denominators; all 0 where there is none."""

    mean: float = 0.0
    std: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a critic is to learn of one sample: arrays [n], 0 where the policy did not write.

    `returns` are what came of each token, `values` what the critic expected then; each token
    weighs 1 / (tokens of the optimizer batch), whatever the policy's own aggregation.
    """

    sample: Sample
    returns: Doubles
    values: Doubles
    weight: Doubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The samples of a step, one tuple for each optimizer update, and what was left out.

    `batches` holds no empty batch: without any signal it is `()`. A judged sample whose
    gradient would be exactly zero is left out of its batch but stays in its denominators.
    `groups_with_spread` counts groups whose shaped scores differ; `attempts` are `unscored`
    (could not be judged), `empty` (judged, but without a sampled token) or one of `samples`,
    which with their `tokens` (trainable) make the denominators; `trained` of those are in the
    batches, `informative` of those have an advantage. `reference_kl` is the k3 estimate of
    KL(sampling policy || reference) over the tokens of the attempts that have a reference,
    None where none has. `penalty` is the
    mean overlong penalty over `samples`. `lessons` are for a critic, one tuple for each optimizer
    batch, in which every sample is; `()` without a critic.
    """

    batches: tuple[tuple[Sample, ...], ...]
    groups: int
    groups_with_spread: int
    attempts: int
    unscored: int
    empty: int
    samples: int
    trained: int
    informative: int
    tokens: int
    advantage: AdvantageSummary
    reference_kl: float | None
    penalty: float
    lessons: tuple[tuple[Lesson, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A non-empty attempt: shaped score, k1 against the reference, what a teacher says of each
    token more than the student did, and of a critic's values and what it makes of them; [k] or
    None."""

    sample: Sample
    score: float
    penalty: float
    k1: Doubles | None
    taught: Doubles | None
    values: Doubles | None = None
    estimates: Estimates | None = None

    @property
    def length(self) -> int:
        return int(self.sample.trainable.sum())


# --- a trajectory as a sample --------------------------------------------------------------


def assemble(trajectory: Trajectory) -> Sample:
    """The tokens of an attempt as one sample that weighs nothing yet.

    The turns' ids in order; trainable where the policy wrote them, with the log-probabilities
    they were drawn with (0 elsewhere). `version` is the oldest that wrote a token, 0 where
    none did. Raises ValueError where sampled turns differ in temperature, or where only some
    of them recorded the filter's support: one recipe plays one way.
    """
    turns = trajectory.turns
    spoken = [turn for turn in turns if turn.sampled.any()]
    temperatures = {turn.temperature for turn in spoken}
    if len(temperatures) > 1:
        raise ValueError(f"{trajectory.id} was sampled at temperatures {sorted(temperatures)}")
    ids = np.concatenate([turn.ids for turn in turns] or [np.zeros(0, np.int32)])
    trainable = np.concatenate([turn.sampled for turn in turns] or [np.zeros(0, np.bool_)])
    behaviour = _zeros(len(ids))
    behaviour[trainable] = np.concatenate([turn.logps for turn in turns] or [_zeros(0)])
    weights = [_zeros(len(ids)) for _ in range(5)]
    return Sample(
        ids=ids,
        trainable=trainable,
        behaviour=behaviour,
        advantage=weights[0],
        policy_weight=weights[1],
        cross_entropy_weight=weights[2],
        kl_weight=weights[3],
        entropy_weight=weights[4],
        trajectory=trajectory.id,
        group=trajectory.group,
        version=min((span.version for turn in spoken for span in turn.versions), default=0),
        temperature=temperatures.pop() if temperatures else 1.0,
        support=_support(trajectory.id, spoken),
        images=tuple(
            part.digest
            for message in trajectory.task.messages
            for part in message.parts
            if isinstance(part, ImagePart)
        ),
    )


def _support(trajectory: str, spoken: Sequence[Turn]) -> Support | None:
    supports = [turn.support for turn in spoken if turn.support is not None]
    if not supports:
        return None
    if len(supports) < len(spoken):
        raise ValueError(f"{trajectory} recorded the support of some sampled turns only")
    counts = np.concatenate([np.diff(support.offsets) for support in supports])
    return Support(
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        ids=np.concatenate([s.ids[s.offsets[0] : s.offsets[-1]] for s in supports]),
    )


# --- a step as batches ---------------------------------------------------------------------


def credit(
    trajectories: Sequence[Trajectory],
    spec: AlgorithmSpec,
    *,
    max_new_tokens: int,
    reference: Mapping[str, Floats] | None = None,
    teacher: Mapping[str, Floats] | None = None,
    values: Mapping[str, Floats] | None = None,
    kl_coefficient: float = 0.0,
    entropy_coefficient: float = 0.0,
) -> Credit:
    """Weigh a step's attempts, as `spec` says, into at most `spec.updates` optimizer batches.

    `max_new_tokens` is the recipe's limit (the constant of Dr.GRPO; also the length from
    which an attempt is overlong, unless its task sets one). `reference`: log-probabilities
    under the reference for each trajectory id, [n] as in its assembled sample; needed where
    `spec.kl` is placed anywhere. The coefficients are the controllers' current ones.

    `teacher`: the same under a teacher, for every attempt. Then verdicts are not what is learned
    from: the advantage of a token is the teacher's log-probability less the student's when it was
    sampled, whose mean is minus the reverse KL (on-policy distillation, Agarwal et al. 2024);
    attempts that could not be judged count like the others.

    `values`: the same of a critic, for advantage "gae", where rewards are those of RLHF (Ziegler
    et al. 2019; Stiennon et al. 2020): the score at the last token the policy wrote, less the
    cost of k1 at every token. An attempt that was cut off has ended like any other: its score
    is for what there is, so nothing is expected to follow.

    The cost of k1 in the reward is centred like the scores (in the group; for reinforce++
    over the batch) but never divided by their spread, so a coefficient means the same in a
    group that has nearly no spread. With a critic it is a part of the rewards, whitened with them.

    Raises ValueError for a trajectory given twice, a missing reference or missing values, and
    NumericalError where log-probabilities or values are not finite.
    """
    if len({trajectory.id for trajectory in trajectories}) < len(trajectories):
        raise ValueError("a trajectory was given twice")
    if spec.kl.place != "none" and reference is None:
        raise ValueError(f"KL in the {spec.kl.place} needs reference log-probabilities")
    rows = _rows(trajectories, spec, max_new_tokens, reference, teacher)
    if spec.advantage == "gae" and teacher is None:
        cost = kl_coefficient if spec.kl.place == "reward" else 0.0
        rows = [_estimated(row, spec, cost, values or {}) for row in rows]
    groups = _by_group(rows)
    spread = {name: has_spread([row.score for row in group]) for name, group in groups.items()}
    split = _split(groups, spread, spec.updates)
    weighed = [
        _weigh(batch, spec, max_new_tokens, kl_coefficient, entropy_coefficient) for batch in split
    ]
    batches = [tuple(s for s in batch if _has_gradient(s)) for batch in weighed]
    kl_rows = [row.k1 for row in rows if row.k1 is not None]
    return Credit(
        batches=tuple(batch for batch in batches if batch),
        groups=len({trajectory.group for trajectory in trajectories}),
        groups_with_spread=sum(spread.values()),
        attempts=len(trajectories),
        unscored=sum(t.score is None for t in trajectories),
        empty=sum(t.score is not None and not t.sampled_tokens for t in trajectories),
        samples=len(rows),
        trained=sum(len(batch) for batch in batches),
        informative=sum(bool(s.advantage.any()) for batch in batches for s in batch),
        tokens=sum(row.length for row in rows),
        advantage=_summary(s.advantage[s.trainable] for batch in weighed for s in batch),
        reference_kl=k3_mean(kl_rows) if kl_rows else None,
        penalty=math.fsum(row.penalty for row in rows) / max(len(rows), 1),
        lessons=tuple(_lessons(batch) for batch in split) if values is not None else (),
    )


def _rows(
    trajectories: Sequence[Trajectory],
    spec: AlgorithmSpec,
    max_new_tokens: int,
    reference: Mapping[str, Floats] | None,
    teacher: Mapping[str, Floats] | None,
) -> list[_Row]:
    """What there is to learn from, in the order of identity, whatever order it came in."""
    return [
        _row(trajectory, trajectory.score or 0.0, spec, max_new_tokens, reference, teacher)
        for trajectory in sorted(trajectories, key=lambda t: (t.group, t.attempt))
        if (trajectory.score is not None or teacher is not None) and trajectory.sampled_tokens
    ]


def _row(
    trajectory: Trajectory,
    score: float,
    spec: AlgorithmSpec,
    max_new_tokens: int,
    reference: Mapping[str, Floats] | None,
    teacher: Mapping[str, Floats] | None,
) -> _Row:
    sample = assemble(trajectory)
    if not np.isfinite(sample.behaviour).all():
        raise NumericalError("a sampled token has no finite log-probability", where=trajectory.id)
    penalty = 0.0
    if spec.overlong is not None:
        limit = trajectory.task.limits.new_tokens or max_new_tokens
        penalty = overlong_penalty(trajectory.sampled_tokens, limit, spec.overlong)
    divergence = None
    if reference is not None and (trajectory.id in reference or spec.kl.place != "none"):
        if trajectory.id not in reference:
            raise ValueError(f"no reference log-probabilities for {trajectory.id}")
        logps = np.asarray(reference[trajectory.id], np.float32)
        divergence = k1(sample.behaviour[sample.trainable], logps[sample.trainable])
        if not np.isfinite(divergence).all():
            raise NumericalError("a reference log-probability is not finite", where=trajectory.id)
        sample = replace(sample, reference=np.where(sample.trainable, logps, np.float32(0)))
    taught = None if teacher is None else _taught(sample, teacher)
    return _Row(sample=sample, score=score - penalty, penalty=penalty, k1=divergence, taught=taught)


def _taught(sample: Sample, teacher: Mapping[str, Floats]) -> Doubles:
    if sample.trajectory not in teacher:
        raise ValueError(f"no teacher's log-probabilities for {sample.trajectory}")
    gap = np.asarray(teacher[sample.trajectory], np.float64) - sample.behaviour
    if not np.isfinite(gap[sample.trainable]).all():
        raise NumericalError("a teacher's log-probability is not finite", where=sample.trajectory)
    return gap[sample.trainable]


def _estimated(row: _Row, spec: AlgorithmSpec, cost: float, values: Mapping[str, Floats]) -> _Row:
    """The row with what the critic expected of it, and the advantages and returns that follow."""
    assert spec.critic is not None
    name = row.sample.trajectory
    if name not in values:
        raise ValueError(f"no critic's values for {name}")
    expected = np.asarray(values[name], np.float64)[row.sample.trainable]
    if not np.isfinite(expected).all():
        raise NumericalError("a critic's value is not finite", where=name)
    rewards = np.zeros(row.length)
    if cost:
        assert row.k1 is not None
        rewards -= cost * row.k1
    rewards[-1] += row.score
    wrote = np.ones(row.length, np.bool_)
    found = gae(rewards, expected, wrote, gamma=spec.gamma, lam=spec.critic.gae_lambda)
    return replace(row, values=expected, estimates=found)


def _lessons(groups: Sequence[Sequence[_Row]]) -> tuple[Lesson, ...]:
    """What a critic learns of an optimizer batch, whose tokens are its one denominator."""
    rows = [row for group in groups for row in group if row.estimates is not None]
    share = 1 / max(sum(row.length for row in rows), 1)
    return tuple(_lesson(row, share) for row in rows)


def _lesson(row: _Row, share: float) -> Lesson:
    assert row.estimates is not None
    assert row.values is not None
    trainable = row.sample.trainable
    returns, values = np.zeros(len(trainable)), np.zeros(len(trainable))
    returns[trainable], values[trainable] = row.estimates.returns, row.values
    weight = np.where(trainable, share, 0.0)
    return Lesson(sample=row.sample, returns=returns, values=values, weight=weight)


def _by_group(rows: Sequence[_Row]) -> dict[str, list[_Row]]:
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.sample.group, []).append(row)
    return groups


def _split(
    groups: Mapping[str, list[_Row]], spread: Mapping[str, bool], updates: int
) -> list[list[list[_Row]]]:
    """Whole groups dealt out in turn, those with a spread first: no batch gets all the idle."""
    order = sorted(groups, key=lambda name: (not spread[name], name))
    hands = [order[update::updates] for update in range(updates)]
    return [[groups[name] for name in sorted(hand)] for hand in hands if hand]


def _weigh(
    groups: Sequence[Sequence[_Row]],
    spec: AlgorithmSpec,
    max_new_tokens: int,
    kl_coefficient: float,
    entropy_coefficient: float,
) -> list[Sample]:
    rows = [row for group in groups for row in group]
    cost = kl_coefficient if spec.kl.place == "reward" else 0.0
    weights = token_weights(
        [row.length for row in rows],
        [row.sample.group for row in rows],
        spec.aggregation,
        max_new_tokens=max_new_tokens,
    )
    in_loss = kl_coefficient if spec.kl.place == "loss" else 0.0
    samples: list[Sample] = []
    for row, values, weight in zip(rows, _advantages(groups, spec, cost), weights, strict=True):
        trainable = row.sample.trainable
        advantage = _zeros(len(trainable))
        advantage[trainable] = values
        share = np.where(trainable, weight, 0.0)
        samples.append(
            replace(
                row.sample,
                advantage=advantage,
                policy_weight=share.astype(np.float32),
                kl_weight=(in_loss * share).astype(np.float32),
                entropy_weight=(entropy_coefficient * share).astype(np.float32),
            )
        )
    return samples


def _advantages(
    groups: Sequence[Sequence[_Row]], spec: AlgorithmSpec, cost: float
) -> list[Doubles]:
    """Token advantages of each row, [k] each: normalised scores less the centred cost of KL, what
    a teacher says, or what a critic did not expect."""
    taught = [row.taught for group in groups for row in group if row.taught is not None]
    if taught:
        return taught
    estimated = [e.advantages for group in groups for row in group if (e := row.estimates)]
    if estimated:
        return advantages.whiten(estimated)
    if spec.advantage == "reinforce++":
        rows = [row for group in groups for row in group]
        gained = advantages.whiten([_discounted(row, spec.gamma) for row in rows])
        if not cost:
            return gained
        paid = advantages.centre([_discounted_k1(row, spec.gamma) for row in rows])
        return [g - cost * p for g, p in zip(gained, paid, strict=True)]
    baseline = {
        "grpo": advantages.grpo,
        "dr_grpo": advantages.dr_grpo,
        "rloo": advantages.rloo,
        "reinforce++_baseline": advantages.dr_grpo,
    }[spec.advantage]
    centring = advantages.rloo if spec.advantage == "rloo" else advantages.dr_grpo
    gained: list[Doubles] = []
    paid: list[Doubles] = []
    for group in groups:
        scores = baseline([row.score for row in group])
        costs = centring([_total_k1(row) if cost else 0.0 for row in group])
        gained += [np.full(row.length, a) for row, a in zip(group, scores, strict=True)]
        paid += [np.full(row.length, c) for row, c in zip(group, costs, strict=True)]
    if spec.advantage == "reinforce++_baseline":
        gained = advantages.whiten(gained)
    return [g - cost * p for g, p in zip(gained, paid, strict=True)]


def _discounted(row: _Row, gamma: float) -> Doubles:
    rewards = np.zeros(row.length)
    rewards[-1] = row.score
    return advantages.returns(rewards, gamma)


def _discounted_k1(row: _Row, gamma: float) -> Doubles:
    assert row.k1 is not None
    return advantages.returns(row.k1, gamma)


def _total_k1(row: _Row) -> float:
    assert row.k1 is not None
    return math.fsum(row.k1)


def _has_gradient(sample: Sample) -> bool:
    return bool(sample.advantage.any() or sample.kl_weight.any() or sample.entropy_weight.any())


def _summary(values: Iterable[Floats]) -> AdvantageSummary:
    rows = list(values)
    if not rows:
        return AdvantageSummary()
    flat = np.concatenate(rows).astype(np.float64)
    return AdvantageSummary(
        mean=float(flat.mean()),
        std=float(flat.std()),
        low=float(flat.min()),
        high=float(flat.max()),
    )


def _zeros(n: int) -> Floats:
    return np.zeros(n, np.float32)
