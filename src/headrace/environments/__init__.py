"""Playing one episode: messages in, trajectories out, judged by their domain's verifier."""

from headrace.environments.single_turn import Group, SingleTurn, judge

__all__ = ["Group", "SingleTurn", "judge"]
