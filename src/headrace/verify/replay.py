"""The kind `simulation-replay`: a log of actions is played again, and only what then is counts.

What an attempt says of its own success is compared with the replay and never believed. Knows
the simulators; may be known by the audit and by environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify.answers import last_fence, without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.child import ChildError, ChildTimeout
from headrace.verify.children import Children
from headrace.verify.kinds import Kind, Specimen, Specimens
from headrace.verify.strict_json import Malformed, read_json
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["KIND", "ReplayAnswer", "SimulationReplay"]

_CLAIMS = ("actions", "final")
_REPLAY_S = 20.0
_WORLDS = Children("headrace.verify.simulators", size=1, memory_mb=1024)


class ReplayAnswer(BaseModel):
    """The world of a task: `simulator` by name, its `seed`, `initial` state and `goal`.

    At most `most_actions` may be played. An attempt that needs no more than `budget` loses
    nothing of the part `steps`, which has the weight `steps_weight`. With `claim` the log must
    come with the hash of its final state.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    simulator: Literal["automaton", "gridworld", "inventory"]
    seed: int
    initial: JsonValue
    goal: JsonValue
    most_actions: Annotated[int, Field(ge=1, le=10_000)] = 1000
    budget: Annotated[int, Field(ge=1)] | None = None
    steps_weight: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    claim: bool = False


class SimulationReplay(BaseVerifier):
    """Whether a log of actions reaches the goal of a task when it is played again.

    `task.answer` is a `ReplayAnswer` as JSON. The attempt is one JSON object, the last block
    called json or the whole text: `{"actions": [...]}` and, if it claims one, the `"final"` hash
    (`content_hash` of the final state). Parts: `goal` (weight 1) is 1 if every action was legal,
    the goal holds at the end and no claim is false; `steps` weighs what the answer says, is 0
    without the goal and budget / used beyond the budget; `extracted`, `legal` and `hack` (a
    false or unknown claim) inform only.
    """

    ref = VerifierRef("simulation-replay", "1")
    surfaces = ("replay",)

    def __init__(self, worlds: Children | None = None) -> None:
        self._worlds = worlds or _WORLDS

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on the log in `text`."""
        try:
            answer = ReplayAnswer.model_validate(task.answer)
        except ValidationError as error:
            return unjudged(self.ref, "task", f"the task's answer is no world: {error}")
        text = without_thinking(text)
        block = last_fence(text, "json")
        try:
            attempt = read_json(text if block is None else block)
        except Malformed as error:
            return self._nothing(str(error))
        if not isinstance(attempt, dict) or not isinstance(attempt.get("actions"), list):
            return self._nothing("an attempt is an object with a list of actions")
        unknown = sorted(set(attempt) - set(_CLAIMS))
        if unknown:
            return self._nothing(f"nobody asked for {', '.join(unknown)}", claimed=True)
        return self._replayed(answer, attempt["actions"], attempt.get("final"))

    def hints(self, task: Task) -> Mapping[str, str]:
        """`action`: an action that the world knows."""
        simulator = ReplayAnswer.model_validate(task.answer).simulator
        return {"action": {"automaton": '"step"', "gridworld": '"up"', "inventory": "0"}[simulator]}

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """The reference without its last action."""
        actions = _actions_of(reference)
        return () if not actions else (_log(actions[:-1]),)

    def _replayed(self, answer: ReplayAnswer, actions: list[Json], claim: Json) -> Verdict:
        if len(actions) > answer.most_actions:
            return self._nothing(f"{len(actions)} actions of {answer.most_actions} at most")
        request = answer.model_dump(include={"seed", "initial", "goal"})
        request["name"] = answer.simulator
        try:
            before = self._worlds.call({**request, "actions": []}, deadline=_REPLAY_S)
            end = self._worlds.call({**request, "actions": actions}, deadline=_REPLAY_S)
        except ChildTimeout as error:
            return unjudged(self.ref, "task", f"the world is too slow: {error}")
        except ChildError as error:
            return unjudged(self.ref, "verifier", str(error))
        if "bad" in before or before["reached"]:
            why = before.get("bad", "the goal holds before the first action")
            return unjudged(self.ref, "task", f"no world to play: {why}")
        false = claim is not None and claim != end["digest"]
        missing = answer.claim and claim is None
        reached = end["reached"] and not false and not missing
        budget = answer.budget or max(1, len(actions))
        steps = min(1.0, budget / max(1, len(actions)))
        facts: dict[str, Json] = {
            "goal": answer.goal,
            "final": end["state"],
            "digest": end["digest"],
            "actions": len(actions),
        }
        if end["illegal"] is not None:
            facts["illegal"] = {"action": end["illegal"], "why": end["why"]}
        if false or missing:
            facts["claimed"] = claim
        parts = (
            VerdictPart("goal", float(reached)),
            VerdictPart("steps", steps if reached else 0.0, answer.steps_weight),
            VerdictPart("extracted", 1.0, 0.0),
            VerdictPart("legal", float(end["illegal"] is None), 0.0),
            hack(false),
        )
        return scored(self.ref, parts, evidence=facts)

    def _nothing(self, why: str, *, claimed: bool = False) -> Verdict:
        parts = (VerdictPart("goal", 0.0), VerdictPart("extracted", 0.0, 0.0), hack(claimed))
        return scored(self.ref, parts, evidence={"refused": why})


# --- specimens -----------------------------------------------------------------------------


def _log(actions: list[Json], **claims: Json) -> str:
    spelled = ", ".join(_spelled(action) for action in actions)
    extra = "".join(f', "{name}": {_spelled(value)}' for name, value in claims.items())
    return f'```json\n{{"actions": [{spelled}]{extra}}}\n```\n'


def _spelled(value: Json) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    return str(value)


def _actions_of(text: str) -> list[Json]:
    block = last_fence(text, "json")
    try:
        attempt = read_json(text if block is None else block)
    except Malformed:
        return []
    return attempt["actions"] if isinstance(attempt, dict) else []


def _grid() -> Specimen:
    walk: list[Json] = ["right", "right", "down", "down", "right"]
    return Specimen(
        prompt="Walk on the map S.*. / .#.# / ...G from S to G by way of the coin *. Answer with "
        'JSON, {"actions": ["up", "down", "left" or "right", ...]}.',
        answer={
            "simulator": "gridworld",
            "seed": 1,
            "initial": {"map": ["S.*.", ".#.#", "...G"]},
            "goal": {"at": "G", "coins": 1},
            "budget": 5,
        },
        reference=_log(walk),
        wrong=(
            _log(["down", "down", "right", "right", "right"]),
            _log([*walk, "left"]),
            _log([*walk, "jump"]),
            _log(walk, final="0123456789abcdef"),
        ),
        right=('{"actions": ["right", "right", "right", "left", "down", "down", "right"]}',),
    )


def _shop() -> Specimen:
    return Specimen(
        prompt="A shop begins with 20 in cash and no stock. A piece costs 2, sells for 5, and 1 "
        "for each night that it stays. Demand is drawn anew each day and is, with this seed, 5, "
        "5, 0, 3. Have 57 or more after four days. Answer with JSON, "
        '{"actions": [pieces to order each day]}.',
        answer={
            "simulator": "inventory",
            "seed": 7,
            "initial": {
                "stock": 0,
                "cash": 20,
                "price": 5,
                "cost": 2,
                "holding": 1,
                "demand": 5,
            },
            "goal": {"cash": 57, "days": 4},
        },
        reference=_log([5, 5, 0, 3]),
        wrong=(_log([5, 5, 3, 0]), _log([5, 5, 0]), _log([5, 5, 0, 3, 0]), _log([11, 5, 0, 3])),
        right=(_log([5, 6, 0, 2]),),
    )


def _life() -> Specimen:
    return Specimen(
        prompt="Conway's life on a torus of 5 x 5, all dead but a row of two in the middle: row 2, "
        "columns 1 and 2. Toggle one cell (rows and columns count from 0) and step once, so that "
        'column 2 is alive in rows 1, 2 and 3. Answer with JSON, {"actions": ["step" or [row, '
        "column], ...]}.",
        answer={
            "simulator": "automaton",
            "seed": 0,
            "initial": {"cells": [".....", ".....", ".##..", ".....", "....."], "toggles": 1},
            "goal": {"cells": [".....", "..#..", "..#..", "..#..", "....."]},
        },
        reference=_log([[2, 3], "step"]),
        wrong=(_log([[2, 0], "step"]), _log([[1, 2], [3, 2], [2, 1]]), _log(["step", [2, 3]])),
        right=(_log([[2, 3], "step", "step", "step"]),),
    )


def specimens() -> Specimens:
    """A walk, a shop and an automaton."""
    return Specimens(SimulationReplay.ref.id, SimulationReplay(), (_grid(), _shop(), _life()))


_LIMITS = """\
The worlds are those of headrace.verify.simulators; each is a pure function of seed, initial state \
and log. A goal is judged in the final state only. Where the policy knows the seed it can plan for \
the chance that comes: whether it is told is the task's choice."""

KIND = Kind(
    id=SimulationReplay.ref.id,
    version=SimulationReplay.ref.version,
    title="A log of actions, played again, reaches the goal and the final state it claims",
    limits=_LIMITS,
    surfaces=("replay",),
    specimens=specimens,
)
