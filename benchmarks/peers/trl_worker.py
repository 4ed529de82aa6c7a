"""The peer TRL: `GRPOTrainer` and `SFTTrainer`, one optimizer step for each request.

A callback holds the trainer before each of its steps until a step is asked for, and reports
how long it took: sampling, reward, forward, backward and the optimizer, without the logging
around them. Gradient checkpointing is off, which is faster and needs memory that there is.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from typing import Any

import torch
import transformers
from reward import letters
from wire import Wire

STEPS = 10_000


class OneStepAtATime(transformers.TrainerCallback):
    """Lets the trainer go on for one step for each request; the end of requests ends it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._started = 0.0
        self.trainer: Any = None
        self.counted = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._wire.receive() is None:
            raise SystemExit(0)
        self.counted = 0
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._wire.reply(seconds=time.perf_counter() - self._started, count=self.counted)


def main() -> None:
    wire = Wire()
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    trl: Any = importlib.import_module("trl")
    gate = OneStepAtATime(wire)
    with tempfile.TemporaryDirectory(prefix="headrace-trl-") as folder:
        trainer = (_grpo if spec["task"] == "grpo" else _sft)(trl, spec, folder, gate)
        wire.reply(ready=True, version=f"trl {trl.__version__}", threads=torch.get_num_threads())
        trainer.train()


def _common(spec: dict[str, Any], folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": spec["dtype"] == "bf16",
        "gradient_checkpointing": False,
        "learning_rate": spec["learning_rate"],
        "lr_scheduler_type": "constant",
        "max_steps": STEPS,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "seed": spec["seed"],
        "model_init_kwargs": {"dtype": "float32"},
    }


def _rows(rows: list[dict[str, Any]]) -> Any:
    datasets: Any = importlib.import_module("datasets")
    return datasets.Dataset.from_list(rows)


def _grpo(trl: Any, spec: dict[str, Any], folder: str, gate: OneStepAtATime) -> Any:
    groups, samples = spec["groups"], spec["samples"]
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(spec["model"])

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        if {len(ids) for ids in completion_ids} != {spec["new_tokens"]}:
            raise ValueError("a completion ended before its last token")
        gate.counted += len(completions)
        return [letters(text) for text in completions]

    config = trl.GRPOConfig(
        **_common(spec, folder),
        per_device_train_batch_size=groups * samples,
        num_generations=samples,
        max_completion_length=spec["new_tokens"],
        generation_kwargs={"min_new_tokens": spec["new_tokens"]},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        shuffle_dataset=False,
    )
    return trl.GRPOTrainer(
        model=spec["model"],
        reward_funcs=reward,
        args=config,
        train_dataset=_rows([{"prompt": text} for text in spec["texts"]]),
        processing_class=tokenizer,
        callbacks=[gate],
    )


def _sft(trl: Any, spec: dict[str, Any], folder: str, gate: OneStepAtATime) -> Any:
    config = trl.SFTConfig(
        **_common(spec, folder),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=spec["tokens"] // spec["pack"],
        max_length=spec["pack"],
        packing=True,
        packing_strategy="bfd",
    )

    class Counting(trl.SFTTrainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            mask = inputs.get("attention_mask")
            ids = inputs["input_ids"]
            gate.counted += int(ids.numel() if mask is None else mask.sum())
            return super().training_step(model, inputs, *rest, **named)

    return Counting(
        model=spec["model"],
        args=config,
        train_dataset=_rows([{"input_ids": ids} for ids in spec["sequences"]]),
        processing_class=transformers.AutoTokenizer.from_pretrained(spec["model"]),
        callbacks=[gate],
    )


if __name__ == "__main__":
    main()
