"""The peer TRL in the benchmark of stages: `SFTTrainer`, `DPOTrainer`, `RewardTrainer`.

One optimizer step for each request, on the units that come next in the trainer's own order, which
it tells when it is ready: packing decides which conversations share a step. A step's time is that
of forward, backward and the optimizer, without reading the batch and logging. Token ids are given
and not made again. Gradient checkpointing is off, which is faster and needs memory that there is.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from peak import peak_bytes
from wire import Wire, timed

Rows = list[dict[str, Any]]


class OneStepAtATime(transformers.TrainerCallback):
    """Lets the trainer go on for one step for each request; the end of requests ends it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._started = 0.0
        self.tokens, self.loss, self.reference_seconds = 0, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._wire.receive() is None:
            raise SystemExit(0)
        self.tokens, self.loss = 0, 0.0
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self._started
        self._wire.reply(seconds=seconds, tokens=self.tokens, loss=self.loss, peak=peak_bytes())


def main() -> None:
    wire = Wire()
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    trl: Any = importlib.import_module("trl")
    told = json.loads(Path(spec["units"]).read_text())
    gate = OneStepAtATime(wire)
    make = {"sft": _sft, "dpo": _dpo, "reward": _reward}[spec["task"]]
    with tempfile.TemporaryDirectory(prefix="headrace-trl-") as folder:
        trainer, steps = make(trl, spec, told, folder, gate)
        wire.reply(
            ready=True,
            version=f"trl {trl.__version__}",
            threads=torch.get_num_threads(),
            steps=steps,
            reference_seconds=gate.reference_seconds,
        )
        trainer.train()


def _common(spec: dict[str, Any], folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "gradient_accumulation_steps": spec["accumulate"],
        "per_device_train_batch_size": spec["micro"],
        "learning_rate": spec["learning_rate"],
        "adam_beta1": spec["betas"][0],
        "adam_beta2": spec["betas"][1],
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "constant",
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "seed": spec["seed"],
    }


def _watched(trainer: Any, gate: OneStepAtATime) -> Any:
    """The trainer's class, which tells `gate` of tokens and loss and takes the ids as they are."""

    class Watched(trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            mask = inputs.get("attention_mask")
            gate.tokens += int(inputs["input_ids"].numel() if mask is None else mask.sum())
            loss = super().training_step(model, inputs, *rest, **named)
            gate.loss += float(loss)
            return loss

        def _precompute_ref_logps(self, *rest: Any, **named: Any) -> Any:
            work = super()._precompute_ref_logps
            gate.reference_seconds, dataset = timed(lambda: work(*rest, **named))
            return dataset

    return Watched


def _rows(rows: Rows) -> Any:
    datasets: Any = importlib.import_module("datasets")
    return datasets.Dataset.from_list(rows)


def _model(spec: dict[str, Any], kind: Any, **settings: Any) -> Any:
    return kind.from_pretrained(spec["model"], dtype=torch.float32, **settings)


def _tokenizer(spec: dict[str, Any], told: dict[str, Any]) -> Any:
    """The model's, with padding that is no token of the data, so that none is taken for it."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(spec["model"])
    used = {id for unit in told["units"] for example in unit for id in example["ids"]}
    free = [
        t for t in tokenizer.all_special_tokens if tokenizer.convert_tokens_to_ids(t) not in used
    ]
    tokenizer.pad_token = free[0]
    return tokenizer


def _sft(
    trl: Any, spec: dict[str, Any], told: dict[str, Any], folder: str, gate: OneStepAtATime
) -> tuple[Any, list[list[int]]]:
    rows: Rows = []
    for [example] in told["units"]:
        labels = [
            id if on else -100 for id, on in zip(example["ids"], example["trainable"], strict=True)
        ]
        rows.append({"input_ids": example["ids"], "labels": labels})
    config = trl.SFTConfig(
        **_common(spec, folder),
        max_length=spec["pack"],
        packing=True,
        packing_strategy="bfd",
    )
    trainer = _watched(trl.SFTTrainer, gate)(
        model=_model(spec, transformers.AutoModelForCausalLM),
        args=config,
        train_dataset=_rows(rows),
        processing_class=_tokenizer(spec, told),
        callbacks=[gate],
    )
    number = {tuple(row["input_ids"]): place for place, row in enumerate(rows)}
    packs: list[list[int]] = []
    for pack in trainer.train_dataset:
        ends = list(itertools.accumulate(pack["seq_lengths"], initial=0))
        ids = pack["input_ids"]
        packs.append([number[tuple(ids[a:b])] for a, b in itertools.pairwise(ends)])
    return trainer, [
        [place for pack in step for place in pack]
        for step in _batches(packs, spec["micro"] * spec["accumulate"])
    ]


def _dpo(
    trl: Any, spec: dict[str, Any], told: dict[str, Any], folder: str, gate: OneStepAtATime
) -> tuple[Any, list[list[int]]]:
    rows: Rows = []
    for pair in told["units"]:
        chosen, rejected = sorted(pair, key=lambda example: -example["label"])
        start = chosen["trainable"].index(True)
        if chosen["ids"][:start] != rejected["ids"][:start]:
            raise ValueError("the two sides of a pair have different prompts")
        rows.append(
            {
                "prompt_ids": chosen["ids"][:start],
                "chosen_ids": chosen["ids"][start:],
                "rejected_ids": rejected["ids"][start:],
            }
        )

    class Given(_watched(trl.DPOTrainer, gate)):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset  # it would make ids out of text

    config = trl.DPOConfig(
        **_common(spec, folder),
        beta=spec["beta"],
        max_length=None,
        precompute_ref_log_probs=True,
    )
    trainer = Given(
        model=_model(spec, transformers.AutoModelForCausalLM),
        args=config,
        train_dataset=_rows(rows),
        processing_class=_tokenizer(spec, told),
        callbacks=[gate],
    )
    return trainer, _batches(list(range(len(rows))), spec["micro"] * spec["accumulate"])


def _reward(
    trl: Any, spec: dict[str, Any], told: dict[str, Any], folder: str, gate: OneStepAtATime
) -> tuple[Any, list[list[int]]]:
    rows: Rows = []
    for pair in told["units"]:
        chosen, rejected = sorted(pair, key=lambda example: -example["label"])
        rows.append({"chosen_ids": chosen["ids"], "rejected_ids": rejected["ids"]})
    trainer = _watched(trl.RewardTrainer, gate)(
        model=_model(spec, transformers.AutoModelForSequenceClassification, num_labels=1),
        args=trl.RewardConfig(**_common(spec, folder), max_length=None),
        train_dataset=_rows(rows),
        processing_class=_tokenizer(spec, told),
        callbacks=[gate],
    )
    with torch.no_grad():
        trainer.model.score.weight.copy_(torch.tensor([told["head"]]))
    return trainer, _batches(list(range(len(rows))), spec["micro"] * spec["accumulate"])


def _batches(things: list[Any], size: int) -> list[list[Any]]:
    return [things[at : at + size] for at in range(0, len(things), size)]


if __name__ == "__main__":
    main()
