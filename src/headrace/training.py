"""The schema of recorded stages, under the name by which it was first known."""

from headrace.recipe.recorded import (
    DataSource,
    DataSpec,
    DistillSpec,
    Method,
    PreferenceSpec,
    RewardSpec,
    SftSpec,
)

__all__ = [
    "DataSource",
    "DataSpec",
    "DistillSpec",
    "Method",
    "PreferenceSpec",
    "RewardSpec",
    "SftSpec",
]
