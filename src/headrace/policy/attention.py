"""Attention as the engine wants it, inside any model that `transformers` implements.

Models look their attention function up by name at every call. Under `attending` that name is
ours: the model then runs over a flat batch of tokens [1, T] from many sequences, without
padding and without a mask, and a plan decides what each token sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

__all__ = ["AttentionCall", "AttentionPlan", "attending"]

_NAME = "headrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One layer's attention over T tokens.

    `query` is [heads, T, width], `key` and `value` [kv_heads, T, width], positions already
    applied; heads is a multiple of kv_heads. Scores are query . key times `scaling`, capped
    smoothly at `softcap` where one is given; with `window` w a token sees itself and the
    w - 1 before it.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    window: int | None
    softcap: float | None


class AttentionPlan(Protocol):
    """Decides what the T tokens of a flat batch attend to."""

    def attend(self, call: AttentionCall) -> Tensor:
        """The attended values [T, heads, width]."""
        ...


_plan: ContextVar[AttentionPlan] = ContextVar("attention plan")


@contextlib.contextmanager
def attending(config: Any, plan: AttentionPlan) -> Generator[None]:
    """Inside, models with this `config` attend by `plan`; backward passes belong inside too."""
    before = config._attn_implementation
    token = _plan.set(plan)
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        _plan.reset(token)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if query.shape[0] != 1:
        raise ValueError("a flat batch is one row")
    if attention_mask is not None:
        raise ValueError("a flat batch has a plan instead of a mask")
    call = AttentionCall(
        layer=int(getattr(module, "layer_idx")),  # noqa: B009  (declared by no base class)
        query=query[0],
        key=key[0],
        value=value[0],
        scaling=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        window=sliding_window,
        softcap=softcap,
    )
    return _plan.get().attend(call)[None], None


AttentionInterface.register(_NAME, _forward)
