"""Simulated runs: the shipped pipeline in virtual time, in a world of one's own choosing.

`world` says what takes how long and what fails, `engine` and `stages` are that world, `broker` is
the shipped one in memory, `record` and `meters` watch, `simulate` runs and `report` sums up.
`calibrate` takes a world from a run, `assume` from what a person says.
"""

from headrace.pipeline.simulation.assume import Assumptions, assume
from headrace.pipeline.simulation.calibrate import Calibration, calibrate
from headrace.pipeline.simulation.report import Busy, Queues, Report, Staleness
from headrace.pipeline.simulation.simulate import compare, scheduled, simulate
from headrace.pipeline.simulation.world import (
    Distribution,
    DomainModel,
    EngineModel,
    Fixed,
    LearnerModel,
    LogNormal,
    Observed,
    World,
    spread,
)

__all__ = [
    "Assumptions",
    "Busy",
    "Calibration",
    "Distribution",
    "DomainModel",
    "EngineModel",
    "Fixed",
    "LearnerModel",
    "LogNormal",
    "Observed",
    "Queues",
    "Report",
    "Staleness",
    "World",
    "assume",
    "calibrate",
    "compare",
    "scheduled",
    "simulate",
    "spread",
]
