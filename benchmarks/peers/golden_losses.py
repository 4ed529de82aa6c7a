"""Golden values: losses and gradients of TRL's trainers on one tiny model and fixed token ids.

Run in an environment with TRL 1.16 (that of the peer "trl" of `engine_peers.py` is one):

    python benchmarks/peers/golden_losses.py --out tests/algorithms/goldens

It writes `policy.safetensors`, `reference.safetensors` (a Llama of some thousand weights, and
the same a little moved) and `losses.json`: the token ids, and for each case TRL's own loss and,
of every weight of the model, the norm of the gradient and a few of its entries. The trainers
are TRL's as they are; only the batch is handed to `compute_loss` here instead of by a loader.
`tests/algorithms/test_golden.py` compares. TRL has no DPO with smoothed labels: its "aot" loss
over one pair at a time is that (nothing is left to sort), and is recorded so.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

VOCABULARY, PAD, END = 40, 0, 1
ENTRIES = 5

PAIRS: tuple[dict[str, Any], ...] = (
    {"prompt": [5, 9, 12], "chosen": [7, 8, 30, 1], "rejected": [22, 1], "margin": 0.5},
    {"prompt": [6, 3], "chosen": [31, 1], "rejected": [17, 4, 29, 33, 1], "margin": 2.0},
    {"prompt": [14, 11, 10, 2], "chosen": [19, 25, 1], "rejected": [19, 38, 1], "margin": 0.0},
)
ALONE: tuple[dict[str, Any], ...] = (
    {"prompt": [5, 9, 12], "completion": [7, 8, 30, 1], "label": True},
    {"prompt": [6, 3], "completion": [17, 4, 29, 33, 1], "label": False},
    {"prompt": [14, 11, 10, 2], "completion": [19, 25, 1], "label": True},
    {"prompt": [13, 2], "completion": [36, 1], "label": False},
)
PLAYED: tuple[dict[str, Any], ...] = (
    {"prompt": [5, 9, 12], "completion": [7, 8, 30, 1], "advantage": 0.75},
    {"prompt": [5, 9, 12], "completion": [17, 4, 29, 33, 1], "advantage": -1.25},
    {"prompt": [6, 3], "completion": [19, 25, 1], "advantage": 1.5},
    {"prompt": [6, 3], "completion": [36, 1], "advantage": -0.5},
)
MAX_NEW_TOKENS = 8


# --- models --------------------------------------------------------------------------------


def config(**more: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
        attention_dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
        **more,
    )


def make_models() -> tuple[Any, Any, Any]:
    """Policy, reference (the policy with a little noise), and a reward model on its body."""
    torch.manual_seed(7)
    policy = transformers.LlamaForCausalLM(config()).float()
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.04 * torch.randn_like(parameter))
    reward = transformers.LlamaForSequenceClassification(config(num_labels=1)).float()
    reward.model.load_state_dict(policy.model.state_dict())
    return policy, reference, reward


def make_tokenizer() -> Any:
    words = {f"t{number}": number for number in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(vocab=words, unk_token="t2"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=f"t{PAD}", eos_token=f"t{END}", unk_token="t2"
    )


def log_probabilities(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        logits = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
    places = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return logits[places, ids[0, len(prompt) :]]


# --- recording -----------------------------------------------------------------------------


def gradient_of(model: Any, losses: Iterable[Tensor]) -> dict[str, Any]:
    """Backward through each loss in turn; the sum of the losses and of their gradients."""
    model.zero_grad()
    total = 0.0
    for loss in losses:
        loss.backward()
        total += float(loss.detach())
    gradients: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        flat = torch.zeros_like(parameter).flatten() if grad is None else grad.flatten()
        places = torch.linspace(0, len(flat) - 1, ENTRIES).round().long()
        gradients[name] = {"norm": float(flat.norm()), "entries": flat[places].tolist()}
    return {"loss": total, "gradients": gradients}


class Bench:
    """Builds TRL's trainers on fresh copies of the models and records what they compute."""

    def __init__(self, trl: Any, folder: str) -> None:
        self.trl = trl
        self.policy, self.reference, self.reward = make_models()
        self.tokenizer = make_tokenizer()
        self.cases: dict[str, Any] = {}
        self._folder = folder

    def options(self, **more: Any) -> dict[str, Any]:
        return {
            "output_dir": self._folder,
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "gradient_checkpointing": False,
            "per_device_train_batch_size": 4,
            "max_length": 64,
            **more,
        }

    def rows(self, columns: Sequence[str]) -> Any:
        """A data set that only has to exist: the batches are made by hand."""
        datasets: Any = importlib.import_module("datasets")
        words: dict[str, Any] = dict.fromkeys(columns, "t5 t6")
        if "label" in words:
            words["label"] = True
        return datasets.Dataset.from_list([words] * 4)

    def record(self, name: str, settings: dict[str, Any], model: Any, found: Any) -> None:
        self.cases[name] = {"settings": settings, **gradient_of(model, found)}


def padded(rows: Sequence[Sequence[int]], value: int, *, left: bool = False) -> Tensor:
    width = max(len(row) for row in rows)
    filled = [[value] * (width - len(row)) for row in rows]
    pairs = zip(rows, filled, strict=True)
    return torch.tensor([[*fill, *row] if left else [*row, *fill] for row, fill in pairs])


# --- the trainers --------------------------------------------------------------------------


def supervised(bench: Bench) -> None:
    rows = [{**p, "completion": p["chosen"]} for p in PAIRS]

    def batch(members: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids = [m["prompt"] + m["completion"] for m in members]
        labels = [[-100] * len(m["prompt"]) + m["completion"] for m in members]
        return {
            "input_ids": padded(ids, PAD),
            "attention_mask": padded([[1] * len(row) for row in ids], 0),
            "labels": padded(labels, -100),
        }

    def trainer(**more: Any) -> Any:
        return bench.trl.SFTTrainer(
            model=copy.deepcopy(bench.policy),
            args=bench.trl.SFTConfig(**bench.options(**more)),
            train_dataset=bench.rows(["text"]),
            processing_class=bench.tokenizer,
        )

    for name, smoothing in (("sft", 0.0), ("sft_smoothed", 0.1)):
        made = trainer(label_smoothing_factor=smoothing)
        made.model.train()
        loss = made.compute_loss(made.model, batch(rows))
        bench.record(name, {"label_smoothing": smoothing}, made.model, [loss])
    made = trainer()
    made.model.train()
    tokens = sum(len(row["completion"]) for row in rows)
    losses = (
        made.compute_loss(made.model, batch([row]), num_items_in_batch=torch.tensor(tokens))
        for row in rows
    )
    bench.record("sft_accumulated", {}, made.model, losses)


def direct(bench: Bench) -> None:
    collate = bench.trl.trainer.dpo_trainer.DataCollatorForPreference(pad_token_id=PAD)
    rows = [
        {"prompt_ids": p["prompt"], "chosen_ids": p["chosen"], "rejected_ids": p["rejected"]}
        for p in PAIRS
    ]

    def case(name: str, settings: dict[str, Any], *, alone: bool = False) -> None:
        made = bench.trl.DPOTrainer(
            model=copy.deepcopy(bench.policy),
            ref_model=copy.deepcopy(bench.reference),
            args=bench.trl.DPOConfig(**bench.options(**settings)),
            train_dataset=bench.rows(["prompt", "chosen", "rejected"]),
            processing_class=bench.tokenizer,
        )
        made.model.train()
        parts = [[row] for row in rows] if alone else [rows]
        losses = (made.compute_loss(made.model, collate(part)) / len(parts) for part in parts)
        bench.record(name, settings, made.model, losses)

    case("dpo", {"loss_type": ["sigmoid"], "beta": 0.4})
    case(
        "dpo_forward_kl",
        {"loss_type": ["sigmoid"], "beta": 0.4, "f_divergence_type": "forward_kl"},
    )
    case("dpo_length", {"loss_type": ["sigmoid_norm"], "beta": 0.4})
    smoothed = {"loss_type": ["aot"], "beta": 0.4, "label_smoothing": 0.15}
    case("dpo_smoothed", smoothed, alone=True)
    both: dict[str, Any] = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}
    case("dpo_sft", {**both, "beta": 0.4})
    case("ipo", {"loss_type": ["ipo"], "beta": 0.4})


def unpaired(bench: Bench) -> None:
    collate = bench.trl.trainer.kto_trainer.DataCollatorForUnpairedPreference(pad_token_id=PAD)
    rows = [
        {
            "prompt_ids": row["prompt"],
            "completion_ids": row["completion"],
            "KL_completion_ids": ALONE[number - 1]["completion"],
            "label": row["label"],
        }
        for number, row in enumerate(ALONE)
    ]
    settings = {"beta": 0.4, "desirable_weight": 1.5, "undesirable_weight": 0.75}
    # the baseline is clamped at 0, so both directions: one of them has it above
    for name, policy, reference in (
        ("kto", bench.policy, bench.reference),
        ("kto_exchanged", bench.reference, bench.policy),
    ):
        made = bench.trl.KTOTrainer(
            model=copy.deepcopy(policy),
            ref_model=copy.deepcopy(reference),
            args=bench.trl.KTOConfig(**bench.options(loss_type="kto", **settings)),
            train_dataset=bench.rows(["prompt", "completion", "label"]),
            processing_class=bench.tokenizer,
        )
        made.model.train()
        loss = made.compute_loss(made.model, collate(rows))
        bench.record(name, settings, made.model, [loss])
        bench.cases[name]["baseline"] = made._metrics["train"]["kl"][-1]


def without_reference(bench: Bench) -> None:
    batch: dict[str, Tensor] = {}
    for side in ("chosen", "rejected"):
        ids = [p["prompt"] + p[side] for p in PAIRS]
        batch[f"{side}_input_ids"] = padded(ids, PAD)
        batch[f"{side}_attention_mask"] = padded([[1] * len(row) for row in ids], 0)
        labels = [[-100] * len(p["prompt"]) + p[side] for p in PAIRS]
        batch[f"{side}_labels"] = padded(labels, -100)

    def case(name: str, module: str, kind: str, settings: dict[str, Any]) -> None:
        trainers: Any = importlib.import_module(f"trl.experimental.{module}")
        made = getattr(trainers, f"{kind}Trainer")(
            model=copy.deepcopy(bench.policy),
            args=getattr(trainers, f"{kind}Config")(**bench.options(**settings)),
            train_dataset=bench.rows(["prompt", "chosen", "rejected"]),
            processing_class=bench.tokenizer,
        )
        made.model.train()
        loss, _ = made.get_batch_loss_metrics(made.model, batch)
        bench.record(name, settings, made.model, [loss])

    # its cross-entropy is over prompt and preferred answer, both
    case("orpo", "orpo", "ORPO", {"beta": 0.4})
    simpo = {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.6, "cpo_alpha": 0.0}
    case("simpo", "cpo", "CPO", simpo)
    smoothed = {**simpo, "cpo_alpha": 0.5, "label_smoothing": 0.15}
    case("simpo_smoothed_sft", "cpo", "CPO", smoothed)


def reward(bench: Bench) -> None:
    collate = bench.trl.trainer.reward_trainer.DataCollatorForPreference(pad_token_id=PAD)

    def case(name: str, *, centre: float | None, margins: bool) -> None:
        rows = [
            {
                "chosen_ids": p["prompt"] + p["chosen"],
                "rejected_ids": p["prompt"] + p["rejected"],
                **({"margin": p["margin"]} if margins else {}),
            }
            for p in PAIRS
        ]
        made = bench.trl.RewardTrainer(
            model=copy.deepcopy(bench.reward),
            args=bench.trl.RewardConfig(**bench.options(center_rewards_coefficient=centre)),
            train_dataset=bench.rows(["prompt", "chosen", "rejected"]),
            processing_class=bench.tokenizer,
        )
        made.model.train()
        loss = made.compute_loss(made.model, collate(rows))
        bench.record(name, {"centre": centre, "margins": margins}, made.model, [loss])

    case("reward", centre=None, margins=False)
    case("reward_margins_centred", centre=0.05, margins=True)


def played(bench: Bench, data: dict[str, Any]) -> None:
    prompts = [row["prompt"] for row in PLAYED]
    completions = [row["completion"] for row in PLAYED]
    batch = {
        "prompt_ids": padded(prompts, PAD, left=True),
        "prompt_mask": padded([[1] * len(row) for row in prompts], 0, left=True),
        "completion_ids": padded(completions, PAD),
        "completion_mask": padded([[1] * len(row) for row in completions], 0),
        "advantages": torch.tensor([row["advantage"] for row in PLAYED]),
        "num_items_in_batch": torch.tensor(float(sum(len(row) for row in completions))),
    }
    for key, model, wave in (
        ("old_per_token_logps", bench.policy, 0.35),
        ("ref_per_token_logps", bench.reference, 0.0),
    ):
        rows = [log_probabilities(model, r["prompt"], r["completion"]) for r in PLAYED]
        rows = [row + wave * torch.sin(2.0 * torch.arange(len(row)) + 1) for row in rows]
        data[key] = [row.tolist() for row in rows]
        batch[key] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def case(name: str, settings: dict[str, Any]) -> None:
        options = bench.options(**settings)
        del options["max_length"]
        model = copy.deepcopy(bench.policy)
        # the trainer wants to load a reference from where the model came from
        model.config._name_or_path = options["output_dir"]
        bench.reference.save_pretrained(options["output_dir"])
        made = bench.trl.GRPOTrainer(
            model=model,
            reward_funcs=_no_reward,
            args=bench.trl.GRPOConfig(
                **options, num_generations=2, max_completion_length=MAX_NEW_TOKENS
            ),
            train_dataset=bench.rows(["prompt"]),
            processing_class=bench.tokenizer,
        )
        made.model.train()
        made.current_gradient_accumulation_steps = 1
        loss = made._compute_loss(made.model, batch)
        bench.record(name, settings, made.model, [loss])

    clip = {"epsilon": 0.2, "epsilon_high": 0.28}
    case("grpo", {"loss_type": "grpo", "beta": 0.0, **clip})
    kl = {"beta": 0.25, "use_bias_correction_kl": False}
    case("grpo_kl", {"loss_type": "grpo", **kl, **clip})
    case("dapo", {"loss_type": "dapo", "beta": 0.0, **clip})
    case("dr_grpo", {"loss_type": "dr_grpo", "beta": 0.0, **clip})
    sequence = {"loss_type": "grpo", "beta": 0.0, "importance_sampling_level": "sequence"}
    case("gspo", {**sequence, "epsilon": 0.03, "epsilon_high": 0.04})
    case("cispo", {"loss_type": "cispo", "beta": 0.0, "epsilon_high": 1.2})


def _no_reward(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


# --- all of it -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    trl: Any = importlib.import_module("trl")
    data: dict[str, Any] = {
        "pairs": PAIRS,
        "alone": ALONE,
        "played": PLAYED,
        "max_new_tokens": MAX_NEW_TOKENS,
        "config": {"vocab_size": VOCABULARY, **_small(config())},
    }
    with tempfile.TemporaryDirectory(prefix="headrace-golden-") as folder:
        bench = Bench(trl, folder)
        data["score_weight"] = bench.reward.score.weight.flatten().tolist()
        parts: tuple[Callable[[Bench], None], ...] = (
            supervised,
            direct,
            unpaired,
            without_reference,
            reward,
        )
        for part in parts:
            part(bench)
        played(bench, data)
    out.mkdir(parents=True, exist_ok=True)
    for name, model in (("policy", bench.policy), ("reference", bench.reference)):
        save_file(model.state_dict(), out / f"{name}.safetensors", metadata={"format": "pt"})
    versions = {"trl": str(trl.__version__), "torch": str(torch.__version__)}
    versions["transformers"] = transformers.__version__
    (out / "losses.json").write_text(_by_line(versions, data, bench.cases))
    for name, case in bench.cases.items():
        print(f"{name:24} {case['loss']:.7f}")


def _by_line(versions: dict[str, str], data: dict[str, Any], cases: dict[str, Any]) -> str:
    """JSON with one case to a line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    head = f'"versions": {json.dumps(versions)},\n"data": {json.dumps(data)}'
    return f'{{{head},\n"cases": {{\n{lines}\n}}}}\n'


def _small(whole: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    more = ("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings")
    return {name: getattr(whole, name) for name in (*names, *more)}


if __name__ == "__main__":
    main()
