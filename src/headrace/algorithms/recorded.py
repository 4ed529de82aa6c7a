"""Recorded data as samples: the units of one optimizer batch in, weighted samples out.

The counterpart of `headrace.algorithms.credit` for what was not played: every denominator is
that of the whole optimizer batch, so what comes out is a plain sum to a learner and no split of
it changes loss or gradient. Numpy only. A unit is a tuple of examples: one conversation, or the
two of a pair, which share their `group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.errors import NoSignalError, NumericalError
from headrace.protocols import PreferenceLoss, RankingLoss
from headrace.types import Example, Floats, Mask, Sample

__all__ = ["demonstrations", "mismatched", "preferences", "rankings"]

Unit = tuple[Example, ...]

NAMED = 4
"""How many examples an error names."""


# --- demonstrations ------------------------------------------------------------------------


def demonstrations(units: Sequence[Unit], *, scale: float = 1.0) -> tuple[Sample, ...]:
    """Examples to imitate: cross-entropy weight `scale` / T on each of the T trainable tokens.

    T counts all `units`. Examples without a trainable token have no sample; order is kept.
    `Sample.trajectory` is the example's key. Raises NoSignalError, naming examples, where T is 0.
    """
    examples = [example for unit in units for example in unit]
    total = sum(int(_predicted(example).sum()) for example in examples)
    if total == 0:
        raise _nothing(examples)
    return tuple(
        _sample(example, cross_entropy=scale / total)
        for example in examples
        if _predicted(example).any()
    )


# --- preferences ---------------------------------------------------------------------------


def preferences(
    units: Sequence[Unit],
    loss: PreferenceLoss,
    reference: Mapping[str, Floats] | None = None,
) -> tuple[Sample, ...]:
    """Pairs (for "kto" examples, alone or in pairs) as samples of weight 1 / number of them.

    `reference`: log-probabilities [n] of each example under the frozen reference by its key,
    for losses that need one; what stands outside the trainable tokens is not read.
    `loss.sft_weight` is spread as cross-entropy weight evenly over the preferred tokens of the
    whole batch. Order is kept; the two of a pair stay side by side.

    Raises ValueError, naming the group, for a unit that is no pair (of labels 1 and -1, one
    group, and different tokens), and for a missing reference; NoSignalError, naming examples,
    where one has no trainable token or there is no unit; NumericalError for a reference that is
    not finite.
    """
    examples = [example for unit in units for example in unit]
    bare = [example for example in examples if not _predicted(example).any()]
    if bare or not examples:
        raise _nothing(bare)
    if loss.loss == "kto":
        _check_alone(examples)
    else:
        for unit in units:
            _check_pair(unit, labels=((-1.0, 1.0),))
    count = len(examples) if loss.loss == "kto" else len(units)
    good = sum(int(_predicted(example).sum()) for example in examples if example.label > 0)
    imitate = loss.sft_weight / max(good, 1)
    return tuple(
        _sample(
            example,
            cross_entropy=imitate if example.label > 0 else 0.0,
            weight=1 / count,
            reference=_reference(example, reference) if loss.needs_reference else None,
        )
        for example in examples
    )


def mismatched(units: Sequence[Unit]) -> tuple[Sample, ...]:
    """Each prompt with a completion of the unit before it (the first with the last's).

    For KTO's baseline (`headrace.algorithms.preferences.kto_baseline`): score them under policy
    and reference. A prompt reaches to the first trainable token, the completion from there on;
    the two of a pair share a prompt and never swap completions. They weigh nothing;
    `Sample.trajectory` joins the keys, prompt first, so it stays a name by content. A batch of
    one unit has no mismatch: ().
    """
    if len(units) < 2:
        return ()
    return tuple(
        _sample(_crossed(example, units[number - 1][place % len(units[number - 1])]))
        for number, unit in enumerate(units)
        for place, example in enumerate(unit)
    )


def _crossed(asked: Example, answered: Example) -> Example:
    start, begin = _start(asked), _start(answered)
    key = f"{asked.key}+{answered.key}"
    return Example(
        key=key,
        group=key,
        source=asked.source,
        ids=np.concatenate([asked.ids[:start], answered.ids[begin:]]),
        trainable=np.concatenate([np.zeros(start, np.bool_), answered.trainable[begin:]]),
    )


# --- rankings ------------------------------------------------------------------------------


def rankings(
    units: Sequence[Unit], loss: RankingLoss, steps: Mapping[str, Floats] | None = None
) -> tuple[Sample, ...]:
    """Pairs and ties (both labels 0) for a reward model: weight 1 / number of units.

    The process form takes examples alone or in pairs: `Sample.advantage` is the target (0..1) of
    each marked step and `Sample.policy_weight` 1 / number of steps of the batch. `steps` gives
    the targets [n] by key; NaN marks a token that ends no step, and only trainable tokens can.
    Without `steps` every trainable token has the outcome as its target (Cobbe et al. 2021): the
    score, or where there is none (label + 1) / 2.

    Raises as `preferences` does, and ValueError for a target out of range or of another length.
    """
    examples = [example for unit in units for example in unit]
    bare = [example for example in examples if not _predicted(example).any()]
    if bare or not examples:
        raise _nothing(bare)
    if loss.process:
        return _steps(examples, steps)
    for unit in units:
        _check_pair(unit, labels=((-1.0, 1.0), (0.0, 0.0)))
    return tuple(_sample(example, weight=1 / len(units)) for example in examples)


def _steps(examples: Sequence[Example], steps: Mapping[str, Floats] | None) -> tuple[Sample, ...]:
    targets = [_targets(example, steps) for example in examples]
    count = sum(int((~np.isnan(target)).sum()) for target in targets)
    if count == 0:
        raise _nothing(examples)
    return tuple(
        _sample(example, target=target, step=1 / count)
        for example, target in zip(examples, targets, strict=True)
        if not np.isnan(target).all()
    )


def _targets(example: Example, steps: Mapping[str, Floats] | None) -> Floats:
    """Targets [n] at the marked steps of an example, NaN elsewhere."""
    on = _predicted(example)
    if steps is None:
        outcome = (example.label + 1) / 2 if example.score is None else example.score
        return np.where(on, np.float32(outcome), np.float32(np.nan))
    if example.key not in steps:
        raise ValueError(f"no targets for the steps of {example.key}")
    given = np.asarray(steps[example.key], np.float32)
    if given.shape != on.shape:
        raise ValueError(f"{example.key} has {len(on)} tokens and targets for {given.size}")
    target = np.where(on, given, np.float32(np.nan))
    if bool(((target < 0) | (target > 1)).any()):
        raise ValueError(f"a target of {example.key} is outside 0..1")
    return target


# --- helpers -------------------------------------------------------------------------------


def _predicted(example: Example) -> Mask:
    """Trainable tokens [n] that something predicts: all but the first of a sequence."""
    mask = np.array(example.trainable, np.bool_)
    mask[:1] = False
    return mask


def _start(example: Example) -> int:
    """Where the completion begins: at the first trainable token."""
    places = np.flatnonzero(_predicted(example))
    return int(places[0]) if len(places) else len(example.ids)


def _reference(example: Example, reference: Mapping[str, Floats] | None) -> Floats:
    if reference is None or example.key not in reference:
        raise ValueError(f"no reference log-probabilities for {example.key}")
    on = _predicted(example)
    given = np.asarray(reference[example.key], np.float32)
    if given.shape != on.shape:
        raise ValueError(f"{example.key} has {len(on)} tokens and reference of {given.size}")
    logps = np.where(on, given, np.float32(0))
    if not np.isfinite(logps).all():
        raise NumericalError("a reference log-probability is not finite", where=example.key)
    return logps


def _sample(
    example: Example,
    *,
    cross_entropy: float = 0.0,
    weight: float = 0.0,
    reference: Floats | None = None,
    target: Floats | None = None,
    step: float = 0.0,
) -> Sample:
    """The example with its weights; `target` [n] marks steps, NaN elsewhere."""
    on = _predicted(example)
    zeros = [np.zeros(len(on), np.float32) for _ in range(4)]
    marked = np.zeros(len(on), np.bool_) if target is None else ~np.isnan(target)
    advantage = zeros[0] if target is None else np.where(marked, target, np.float32(0))
    return Sample(
        ids=np.asarray(example.ids, np.int32),
        trainable=on,
        behaviour=zeros[1],
        advantage=advantage,
        policy_weight=np.where(marked, step, 0.0).astype(np.float32),
        cross_entropy_weight=np.where(on, cross_entropy, 0.0).astype(np.float32),
        kl_weight=zeros[2],
        entropy_weight=zeros[3],
        trajectory=example.key,
        group=example.group,
        version=0,
        reference=reference,
        weight=weight,
        label=example.label,
        margin=example.margin,
    )


def _check_alone(examples: Iterable[Example]) -> None:
    for example in examples:
        if example.label not in (-1.0, 1.0):
            raise ValueError(
                f"group {example.group} has an example of label {example.label:g}, not 1 or -1"
            )


def _check_pair(unit: Unit, *, labels: tuple[tuple[float, ...], ...]) -> None:
    names = ", ".join(sorted({example.group for example in unit})) or "(none)"
    found = tuple(sorted(example.label for example in unit))
    if len({example.group for example in unit}) != 1 or found not in labels:
        told = ", ".join(f"{label:g}" for label in found)
        raise ValueError(f"group {names} is no pair: its labels are {told}")
    one, other = unit
    if np.array_equal(one.ids, other.ids) and np.array_equal(one.trainable, other.trainable):
        raise ValueError(f"the two sides of group {names} are equal")


def _nothing(examples: Sequence[Example]) -> NoSignalError:
    keys = ", ".join(example.key for example in examples[:NAMED])
    rest = f" and {len(examples) - NAMED} more" if len(examples) > NAMED else ""
    return NoSignalError(
        "no token to learn from",
        where=f"examples {keys}{rest}" if examples else "an empty batch",
        hint="data.train_on says whose messages are trained on",
    )
