"""The watch over a run's honesty: a run that cannot learn must not look like one that does.

Looks at each finished step and either lets it pass, ends the run as mastered, or raises
NoSignalError with what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.algorithms.advantages import has_spread
from headrace.errors import NoSignalError
from headrace.recipe import StopSpec
from headrace.types import Json, Trajectory

__all__ = ["Vigil"]


class Vigil:
    """Counts steps in a row without a signal, with everything truncated, with no verdict."""

    def __init__(self, spec: StopSpec, *, batch_wide: bool = False, taught: bool = False) -> None:
        """`batch_wide`: the algorithm compares all attempts of a step, not those of a group;
        `taught`: verdicts are not what is learned from, so it does not matter if all are alike."""
        self._spec = spec
        self._taught = taught
        self._batch_wide = batch_wide
        self._silent: list[float] = []
        self._truncated = 0
        self._unjudged = 0

    def signal(self, trajectories: Sequence[Trajectory]) -> bool:
        """Whether any attempts that are compared with each other scored apart.

        Asked of the verdicts alone: shaping for length or distance gives gradients too, but
        nothing to learn about the task.
        """
        compared: dict[str, list[float | None]] = {}
        for trajectory in trajectories:
            key = "" if self._batch_wide else trajectory.group
            compared.setdefault(key, []).append(trajectory.score)
        return any(has_spread(scores) for scores in compared.values())

    def observe(self, trajectories: Sequence[Trajectory]) -> str | None:
        """The reason to end the run now as a success, or None to go on.

        Raises NoSignalError after `no_signal` silent steps in a row below `mastered`, after
        `all_truncated` in which every attempt hit the limit, and after `unjudged` in which none
        could be judged.
        """
        scores = [t.score for t in trajectories if t.score is not None]
        self._unjudged = 0 if scores or self._taught else self._unjudged + 1
        cut = all(t.ending == "truncated" for t in trajectories)
        self._truncated = self._truncated + 1 if cut else 0
        mean = sum(scores) / len(scores) if scores else 0.0
        signal = self._taught or self.signal(trajectories)
        self._silent = [] if signal else [*self._silent, mean]
        if self._unjudged >= self._spec.unjudged:
            raise self._no_verdict(trajectories)
        if len(self._silent) >= self._spec.no_signal:
            level = sum(self._silent) / len(self._silent)
            if level >= self._spec.mastered:
                return "mastered"
            raise NoSignalError(
                f"no learning signal in {len(self._silent)} steps: within every group all "
                f"attempts scored the same (mean {level:.2f})",
                where="training",
                hint="start with easier tasks (tasks.domains.0.first_tier), sample more per "
                "group (play.group_size), or raise play.temperature; look: headrace show latest",
            )
        if self._truncated >= self._spec.all_truncated:
            raise NoSignalError(
                f"every attempt hit the token limit in {self._truncated} steps in a row",
                where="play.max_new_tokens",
                hint="raise it: --set play.max_new_tokens=N, or ask for shorter answers",
            )
        return None

    def _no_verdict(self, trajectories: Sequence[Trajectory]) -> NoSignalError:
        evidence = next(
            (t.verdict.evidence for t in trajectories if t.verdict and t.verdict.evidence),
            "no evidence was recorded",
        )
        return NoSignalError(
            f"no attempt could be judged in {self._unjudged} steps in a row: {evidence}",
            where="verifier",
            hint="try it alone: headrace domains show NAME",
        )

    def state(self) -> dict[str, Json]:
        return {
            "silent": list(self._silent),
            "truncated": self._truncated,
            "unjudged": self._unjudged,
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        self._silent = [float(x) for x in state["silent"]]
        self._truncated = int(state["truncated"])
        self._unjudged = int(state["unjudged"])
