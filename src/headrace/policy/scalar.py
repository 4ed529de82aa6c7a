"""Reward models and critics: the body of a causal language model and a head of width 1.

A reward model scores a whole sequence at its last token, a process model every marked step at
the token that ends it, a critic the state before every token that the policy wrote. The head is
fp32 whatever the body computes in. Micro-batches, layouts and optimizer steps are those of the
policy; which data and which loss are the caller's business.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headrace.algorithms.critic import ValueInputs, ValueReport, ValueSums, value_loss
from headrace.algorithms.ranking import RankingInputs, RankingSums, ranking
from headrace.errors import ModelError
from headrace.policy.engine import TorchPolicy
from headrace.policy.files import (
    read_weights,
    reading,
    weights_directory,
    write_model,
    write_weights,
)
from headrace.policy.load import load
from headrace.policy.passes import (
    Kept,
    Rows,
    Units,
    last,
    passes,
    predicting,
    refuse_unfit,
    together,
)
from headrace.policy.stepping import Stepper, descend, refuse_silence
from headrace.protocols import RankingLoss, RankingReport, UpdateReport
from headrace.recipe import LearnerSpec, ModelSpec
from headrace.types import Floats, Json, Sample

__all__ = ["Kind", "ScalarModel", "ValueTarget", "open_scalar"]

Kind = Literal["reward", "process", "critic"]

DESCRIPTION = "headrace_scalar.json"
HEAD = "scalar_head.safetensors"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTarget:
    """What a critic learns of one sample: arrays [n], read at its trainable tokens.

    `returns` it is fitted to, `old` are its values when the batch was scored, `weight` is each
    token's share of the loss, with the denominator of the whole optimizer batch.
    """

    sample: Sample
    returns: npt.NDArray[np.floating]
    old: npt.NDArray[np.floating]
    weight: npt.NDArray[np.floating]


class ScalarModel:
    """A scorer of sequences over `policy`, whose body it trains with its head.

    `total_steps` optimizer steps are planned; `seed` draws the head. `training` (a JSON object)
    says where the model comes from, and is kept with it. The policy belongs to the model: its
    output head is not trained and its reference is not used. `digest` names the files it was
    opened from, "" for a new one.
    """

    def __init__(
        self,
        policy: TorchPolicy,
        spec: LearnerSpec,
        *,
        kind: Kind,
        total_steps: int = 1,
        seed: int = 0,
        training: Mapping[str, Json] | None = None,
        digest: str = "",
    ) -> None:
        self.kind: Kind = kind
        self.training: dict[str, Json] = dict(training or {})
        self.digest = digest
        self._policy = policy
        self._spec = spec
        for parameter in policy.parts.head_alone:
            parameter.requires_grad_(False)
        self._head = _fresh_head(int(policy.config.get_text_config().hidden_size), seed)
        self._head.to(policy.device)
        parameters = policy.trainable() | {
            f"scalar_head.{name}": p for name, p in self._head.named_parameters()
        }
        self._stepper = Stepper(parameters, spec, total_steps=total_steps)

    @property
    def policy(self) -> TorchPolicy:
        return self._policy

    @property
    def head(self) -> nn.Linear:
        """[width] to [1], fp32."""
        return self._head

    # --- scoring -------------------------------------------------------------------------

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        """The score of each sample, at its last token; higher is better, without a bound.

        Raises UsageError for a sample that the model cannot compute whole.
        """
        results = [0.0] * len(samples)
        for batch in self._read(samples, last):
            for member, values in zip(batch.members, batch.split(), strict=True):
                results[member] = float(values[0])
        return results

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """Per sample [n], at each trainable token the value of the state it was chosen in."""
        return self._spread(samples, predicting)

    def step_scores(self, samples: Sequence[Sample]) -> list[Floats]:
        """Per sample [n], at each trainable token the score of the step that it ends (a logit)."""
        return self._spread(samples, _marked)

    def _spread(
        self, samples: Sequence[Sample], positions: Callable[[Sample], Rows]
    ) -> list[Floats]:
        results = [np.zeros(len(sample.ids), dtype=np.float32) for sample in samples]
        for batch in self._read(samples, positions):
            for member, values in zip(batch.members, batch.split(), strict=True):
                results[member][samples[member].trainable] = values
        return results

    def _read(
        self, samples: Sequence[Sample], positions: Callable[[Sample], Rows]
    ) -> Iterator[_Batch]:
        with torch.inference_mode():
            alone = [[index] for index in range(len(samples))]
            yield from self._batches(samples, alone, positions)

    def _batches(
        self, samples: Sequence[Sample], units: Units, positions: Callable[[Sample], Rows]
    ) -> Iterator[_Batch]:
        refuse_unfit(self._policy, samples, self._spec)
        for kept in passes(self._policy, samples, self._spec, units, positions=positions):
            yield _Batch(kept, self._head(kept.states.float())[:, 0][kept.flat_rows])

    # --- gradients -----------------------------------------------------------------------

    def forward_backward(self, samples: Sequence[Sample], loss: RankingLoss) -> RankingReport:
        """Add the gradient of a ranking loss over `samples`; see `RankingInputs`.

        The samples of a group stay in one micro-batch. In the process form `Sample.advantage`
        is the target of each marked step and `Sample.policy_weight` its weight. Raises
        NoSignalError if nothing is trainable, NumericalError if the loss is not finite,
        UsageError for a sample that the model cannot compute whole, ValueError for groups that
        are no pairs.
        """
        refuse_silence(samples)
        numbers = {group: at for at, group in enumerate(dict.fromkeys(s.group for s in samples))}
        positions = _marked if loss.process else last
        sums = RankingSums()
        for batch in self._batches(samples, together(samples), positions):
            members = [samples[member] for member in batch.members]
            terms = ranking(self._inputs(batch, members, numbers, loss), loss)
            descend(terms.loss, members)
            sums += terms.sums
        return sums.report()

    def _inputs(
        self,
        batch: _Batch,
        members: Sequence[Sample],
        numbers: Mapping[str, int],
        loss: RankingLoss,
    ) -> RankingInputs:
        device = self._policy.device
        target = step_weight = None
        if loss.process:
            target = _flat(members, [s.advantage for s in members], device)
            step_weight = _flat(members, [s.policy_weight for s in members], device)
        return RankingInputs(
            score=batch.scores,
            sequence=batch.kept.sequence,
            label=torch.tensor([s.label for s in members], device=device),
            weight=torch.tensor([s.weight for s in members], device=device),
            margin=torch.tensor([s.margin for s in members], device=device),
            group=torch.tensor([numbers[s.group] for s in members], device=device),
            target=target,
            step_weight=step_weight,
        )

    def fit_values(
        self, targets: Sequence[ValueTarget], *, clip: float | None = 0.2
    ) -> ValueReport:
        """Add the gradient of the clipped value loss; see `headrace.algorithms.critic`.

        Raises what `forward_backward` does.
        """
        samples = [target.sample for target in targets]
        refuse_silence(samples)
        device = self._policy.device
        sums = ValueSums()
        for batch in self._batches(samples, [[i] for i in range(len(samples))], predicting):
            members = [samples[member] for member in batch.members]
            told = [targets[member] for member in batch.members]
            inputs = ValueInputs(
                value=batch.scores,
                old=_flat(members, [t.old for t in told], device),
                target=_flat(members, [t.returns for t in told], device),
                weight=_flat(members, [t.weight for t in told], device),
            )
            terms = value_loss(inputs, clip=clip)
            descend(terms.loss, members)
            sums += terms.sums
        return sums.report()

    def optim_step(self) -> UpdateReport:
        """As `TorchLearner.optim_step`: clip, step, and check that the weights changed."""
        return self._stepper.step()

    # --- files ---------------------------------------------------------------------------

    def export(self, directory: Path) -> None:
        """Write the whole model for `open_scalar`, an adapter merged, into a new or empty place."""
        write_model(self._policy, directory)
        self._write_head(directory)

    def save(self, directory: Path) -> None:
        """Write a checkpoint: what is trained, and the optimizer's state.

        Without an adapter its "model" directory is one that `open_scalar` opens.
        """
        write_weights(self._policy, directory)
        self._write_head(weights_directory(self._policy, directory))
        save_file(self._stepper.moments(), directory / "optimizer.safetensors")
        state = {"optimizer_steps": self._stepper.steps}
        (directory / "learner.json").write_text(json.dumps(state))

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit for bit; CheckpointError if it does not fit."""
        with reading(directory):
            read_weights(self._policy, directory)
            place = weights_directory(self._policy, directory)
            description = json.loads((place / DESCRIPTION).read_text())
            if description["kind"] != self.kind:
                raise ValueError(f"it is a {description['kind']} model, not a {self.kind} model")
            self._read_head(place)
            state = json.loads((directory / "learner.json").read_text())
            self._stepper.restore(
                load_file(directory / "optimizer.safetensors"),
                steps=int(state["optimizer_steps"]),
            )

    def _write_head(self, directory: Path) -> None:
        weights = {name: p.detach().contiguous() for name, p in self._head.named_parameters()}
        save_file(weights, directory / HEAD)
        description = {
            "format": _FORMAT,
            "kind": self.kind,
            "head": {"file": HEAD, "width": self._head.in_features},
            "training": self.training,
        }
        text = json.dumps(description, indent=1, sort_keys=True, allow_nan=False) + "\n"
        (directory / DESCRIPTION).write_text(text)

    def _read_head(self, directory: Path) -> None:
        """Take over the head in `directory`; ValueError where it does not fit the body."""
        weights = load_file(directory / HEAD)
        own = dict(self._head.named_parameters())
        if weights.keys() != own.keys():
            raise ValueError(f"the head holds {', '.join(sorted(weights)) or 'nothing'}")
        for name, parameter in own.items():
            if weights[name].shape != parameter.shape:
                found = tuple(weights[name].shape)
                raise ValueError(
                    f"the head's {name} has the shape {found}, the body needs "
                    f"{tuple(parameter.shape)}"
                )
            if not bool(torch.isfinite(weights[name]).all()):
                raise ValueError(f"the head's {name} is not finite")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(weights[name])


def open_scalar(
    directory: Path,
    *,
    model: ModelSpec | None = None,
    learner: LearnerSpec | None = None,
    kind: Kind | None = None,
    total_steps: int = 1,
) -> ScalarModel:
    """The model that `ScalarModel.export` wrote into `directory`.

    `model` says how its weights are held (its source is not read), `kind` what it must be.
    Raises ModelError for what is no scalar model, is damaged, or is of another kind.
    """
    found, training = _described(directory)
    if kind is not None and found != kind:
        raise ModelError(f"this is a {found} model, not a {kind} model", where=str(directory))
    loaded = load(f"path:{directory}")
    policy = TorchPolicy(loaded, model or ModelSpec())
    scalar = ScalarModel(
        policy,
        learner or LearnerSpec(),
        kind=found,
        total_steps=total_steps,
        training=training,
        digest=loaded.digest,
    )
    try:
        scalar._read_head(directory)  # pyright: ignore[reportPrivateUsage]
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"the scalar head cannot be read: {error}", where=str(directory / HEAD)
        ) from error
    return scalar


def _described(directory: Path) -> tuple[Kind, dict[str, Json]]:
    path = directory / DESCRIPTION
    try:
        description: Any = json.loads(path.read_text())
        version, kind = description["format"], description["kind"]
        training = dict(description["training"])
    except FileNotFoundError as error:
        raise ModelError(
            f"not a reward model or critic: it has no {DESCRIPTION}", where=str(directory)
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{DESCRIPTION} is damaged: {error!r}", where=str(path)) from error
    if version != _FORMAT or kind not in get_args(Kind):
        raise ModelError(
            f"a scalar model of format {version!r} and kind {kind!r} is not known here",
            where=str(path),
            hint=f"known are format {_FORMAT} and {', '.join(get_args(Kind))}",
        )
    return kind, training


@dataclass(frozen=True, slots=True)
class _Batch:
    """One pass and its scores [T], those of each member one after another."""

    kept: Kept
    scores: Tensor

    @property
    def members(self) -> tuple[int, ...]:
        return self.kept.members

    def split(self) -> list[Floats]:
        """The scores of each member."""
        ends = np.cumsum([len(rows) for rows in self.kept.rows])[:-1]
        return list(np.split(self.scores.cpu().numpy(), ends))


def _marked(sample: Sample) -> Rows:
    """The positions of the trainable tokens themselves."""
    return np.flatnonzero(sample.trainable)


def _flat(
    members: Sequence[Sample], arrays: Sequence[npt.NDArray[np.floating]], device: torch.device
) -> Tensor:
    picked = [array[s.trainable] for array, s in zip(arrays, members, strict=True)]
    return torch.from_numpy(np.concatenate(picked).astype(np.float32)).to(device)


def _fresh_head(width: int, seed: int) -> nn.Linear:
    """Weights of variance 1 / (width + 1) (Stiennon et al. 2020), a bias of 0.

    Not zero: a body behind a head of zeros gets no gradient.
    """
    with torch.random.fork_rng(devices=[]):  # the layer would draw weights of its own
        head = nn.Linear(width, 1, dtype=torch.float32)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0.0, 1 / math.sqrt(width + 1), generator=draw)
        head.bias.zero_()
    return head
