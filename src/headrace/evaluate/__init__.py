"""The held-out suite and its statistics. Intervals need scipy, which loads when it is used."""

from headrace.evaluate.heldout import Evaluation, compare, evaluate
from headrace.evaluate.statistics import mean_interval, paired_difference

__all__ = ["Evaluation", "compare", "evaluate", "mean_interval", "paired_difference"]
