"""The peer `transformers`: its `generate`, called as its documentation says."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import transformers
from wire import Wire, timed


def main() -> None:
    wire = Wire()
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(spec["threads"])
    kinds = {"bf16": torch.bfloat16, "fp32": torch.float32}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        spec["model"], dtype=kinds[spec["dtype"]]
    )
    model.eval()
    model.generation_config.eos_token_id = None  # exactly as many tokens as are asked for
    wire.reply(
        ready=True, version=f"transformers {transformers.__version__}", threads=spec["threads"]
    )
    for request in wire.requests():
        prompts = [p for p in request["prompts"] for _ in range(request["samples"])]
        torch.manual_seed(request["seed"])
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        seconds, out = timed(lambda i=ids, m=mask, n=request["new_tokens"]: _sample(model, i, m, n))
        wire.reply(seconds=seconds, tokens=(out.shape[1] - width) * len(prompts))


def _sample(model: Any, ids: torch.Tensor, mask: torch.Tensor, new_tokens: int) -> torch.Tensor:
    with torch.inference_mode():
        return model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )


if __name__ == "__main__":
    main()
