"""The parts of a causal language model, whatever `transformers` calls them: body, layers, head.

Only positions that are asked for need the head, in as many pieces as memory wants; and layers
are where activations can be computed again instead of kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

__all__ = ["Parts", "replaced_forward"]


@dataclass
class _Hidden(BaseModelOutputWithPast):
    """What a body returns; whatever else some model's head looks for in it is not there."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class Parts:
    """A view of `model`, a `transformers` causal model or a peft wrapper around one."""

    def __init__(self, model: Any) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._causal: Any = base
        self._body: Any = base.get_decoder()
        self.config: Any = base.config

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers, first to last; empty where there is no list of them."""
        count = getattr(self.config, "num_hidden_layers", None)
        for child in cast("nn.Module", self._body).children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return list(child)
        return []

    @property
    def embeddings(self) -> nn.Embedding:
        """The table of input embeddings."""
        return self._causal.get_input_embeddings()

    @property
    def width(self) -> int:
        """How wide an embedding is."""
        return int(self.embeddings.weight.shape[-1])

    @property
    def head_alone(self) -> list[nn.Parameter]:
        """The weights of the output head that nothing else uses (none where it is tied)."""
        head = self._causal.get_output_embeddings()
        used = {id(parameter) for parameter in self._body.parameters()}
        return [] if head is None else [p for p in head.parameters() if id(p) not in used]

    @property
    def learned_positions(self) -> int | None:
        """How many positions a table of learned ones has; None where they are computed."""
        tokens = self.embeddings
        tables = [
            m for m in self._body.modules() if isinstance(m, nn.Embedding) and m is not tokens
        ]
        context = getattr(self.config, "max_position_embeddings", None)
        return min((m.num_embeddings for m in tables), default=None) if context else None

    def hidden(self, **inputs: Any) -> Tensor:
        """What the head is given: [B, T, width] after the final norm."""
        states: Tensor = self._body(**inputs, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """The head over `hidden` [K, width]: [K, V], caps and scales of the model included.

        The model's own code after its body runs, on a body that returns `hidden`.
        """

        def body(*_: Any, **__: Any) -> _Hidden:
            return _Hidden(last_hidden_state=cast("Any", hidden[None]))

        with replaced_forward(self._body, body):
            logits: Tensor = self._causal(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0]


@contextlib.contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Generator[None]:
    """Inside, calling `module` calls `forward`."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
