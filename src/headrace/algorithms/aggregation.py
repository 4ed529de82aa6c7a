"""Aggregation: the weight of each token in an optimizer batch's loss, computed once.

The denominators are those of everything that is judged and trained on, before any sample is
dropped for having no advantage and before any correction rejects a token. Samples that could
not be judged, and those in which the policy wrote nothing, are in neither the numerator nor
the denominator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.recipe import Aggregation

__all__ = ["token_weights"]


def token_weights(
    lengths: Sequence[int],
    groups: Sequence[str],
    aggregation: Aggregation,
    *,
    max_new_tokens: int,
) -> list[float]:
    """The weight of every trainable token of each sequence, [N].

    `lengths`: trainable tokens of each sequence of the whole optimizer batch, all positive.
    With T tokens, N sequences and P prompts (groups) in the batch:

    - token_mean: 1 / T
    - sequence_mean_token_mean: 1 / (N length_i)
    - sequence_mean_token_sum: 1 / N
    - constant (Dr.GRPO): 1 / (N max_new_tokens)
    - prompt_mean: 1 / (P T_p), T_p the tokens of all sequences of the prompt

    >>> token_weights([1, 3], ["a", "a"], "token_mean", max_new_tokens=8)
    [0.25, 0.25]
    >>> token_weights([1, 4], ["a", "b"], "sequence_mean_token_mean", max_new_tokens=8)
    [0.5, 0.125]
    """
    if any(length < 1 for length in lengths):
        raise ValueError("a sequence without trainable tokens has no place in a denominator")
    count = len(lengths)
    match aggregation:
        case "token_mean":
            total = sum(lengths)
            return [1 / total for _ in lengths]
        case "sequence_mean_token_mean":
            return [1 / (count * length) for length in lengths]
        case "sequence_mean_token_sum":
            return [1 / count for _ in lengths]
        case "constant":
            return [1 / (count * max_new_tokens) for _ in lengths]
        case "prompt_mean":
            tokens = Counter[str]()
            for group, length in zip(groups, lengths, strict=True):
                tokens[group] += length
            return [1 / (len(tokens) * tokens[group]) for group in groups]
