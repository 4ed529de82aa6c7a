"""The held-out suite and its statistics. Intervals need scipy, which loads when it is used."""

from headrace.evaluate.heldout import Evaluation, compare, groups_of
from headrace.evaluate.statistics import mean_interval, paired_difference

__all__ = ["Evaluation", "compare", "groups_of", "mean_interval", "paired_difference"]
