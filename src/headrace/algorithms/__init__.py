"""Algorithms as pure functions on orthogonal axes; `docs/algorithms.md` has the formulas.

`credit` turns a step's judged trajectories into weighted samples, out of `advantages`,
`shaping`, `critic` and `aggregation`; `recorded` does the same for recorded data; `control`
moves coefficients between steps. Those are numpy. `losses`, `preferences` and `ranking` are the
torch half and are imported only by the learners that need them. Nothing here knows where
trajectories come from or what runs the model.
"""

from __future__ import annotations

from headrace.algorithms.advantages import has_spread
from headrace.algorithms.control import EntropyController, KlController
from headrace.algorithms.credit import AdvantageSummary, Credit, assemble, credit

__all__ = [
    "AdvantageSummary",
    "Credit",
    "EntropyController",
    "KlController",
    "assemble",
    "credit",
    "has_spread",
]
