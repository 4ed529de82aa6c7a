"""Small deterministic worlds: a seed, an initial state and a log of actions give one final state.

Chance comes from SHA-256 of seed and step, never from a library's generator, so a log replays
the same on every machine and Python. Run as a module this is the worker that replays logs. May
be known by the verifier of replays and by environments that play these worlds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.types import Json, content_hash
from headrace.verify.child import serve

__all__ = [
    "SIMULATORS",
    "BadWorld",
    "Illegal",
    "Replayed",
    "Simulator",
    "chance",
    "replay",
    "worker",
]


class Illegal(Exception):
    """An action that the world does not know, or does not allow now."""


class BadWorld(Exception):
    """An initial state or a goal that this simulator cannot have: the task's fault."""


class Simulator(Protocol):
    """A world. States are JSON values that are never changed in place.

    `begin` makes the first state of a task's `initial`; `step` the next one for an action, with
    `number` (0, 1, ...) as the step; `reached` says whether `goal` holds. `begin` and `reached`
    raise BadWorld, `step` raises Illegal.
    """

    def begin(self, initial: Json) -> Json: ...

    def step(self, state: Json, action: Json, *, seed: int, number: int) -> Json: ...

    def reached(self, state: Json, goal: Json) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How a log ended: the final `state` and its hash, whether the goal holds there, and, where
    an action was illegal, which one (0, 1, ...) and why; what came after it was not played."""

    state: Json
    digest: str
    reached: bool
    illegal: int | None = None
    why: str = ""


def chance(seed: int, number: int, below: int) -> int:
    """A number in 0..below - 1 that depends on nothing but its arguments.

    >>> [chance(1, step, 6) for step in range(5)]
    [0, 1, 1, 3, 5]
    """
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % below


# --- the worlds ----------------------------------------------------------------------------

_MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_CELLS = frozenset("S.#~*G")


class Gridworld:
    """A walk. `initial` is `{"map": [row, ...]}`: S start, . floor, # wall, ~ ice, * coin, G goal.

    Actions "up", "down", "left", "right"; a wall or the edge stops. On ice one time in three the
    walker slips and goes to the right of where it wanted (seen in its direction). Coins are
    taken by stepping on them. `goal` is `{"at": "G"}` or `{"coins": n}` or both.
    """

    def begin(self, initial: Json) -> Json:
        rows = initial.get("map") if isinstance(initial, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, str) and row for row in rows):
            raise BadWorld("a gridworld has a map of rows")
        starts = [[r, c] for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "S"]
        if len(starts) != 1 or len({len(row) for row in rows}) != 1:
            raise BadWorld("rows of one length with one start")
        if set("".join(rows)) - _CELLS:
            raise BadWorld("an unknown cell in the map")
        return {"map": rows, "at": starts[0], "coins": 0}

    def step(self, state: Json, action: Json, *, seed: int, number: int) -> Json:
        if not isinstance(action, str) or action not in _MOVES:
            raise Illegal(f"the actions are {', '.join(_MOVES)}")
        down, right = _MOVES[action]
        rows, (row, column) = state["map"], state["at"]
        if rows[row][column] == "~" and chance(seed, number, 3) == 0:
            down, right = right, -down
        new_row, new_column = row + down, column + right
        inside = 0 <= new_row < len(rows) and 0 <= new_column < len(rows[0])
        if not inside or rows[new_row][new_column] == "#":
            return state
        coins = state["coins"]
        if rows[new_row][new_column] == "*":
            line = rows[new_row]
            line = line[:new_column] + "." + line[new_column + 1 :]
            rows, coins = [*rows[:new_row], line, *rows[new_row + 1 :]], coins + 1
        return {"map": rows, "at": [new_row, new_column], "coins": coins}

    def reached(self, state: Json, goal: Json) -> bool:
        if not isinstance(goal, dict) or not goal or set(goal) - {"at", "coins"}:
            raise BadWorld("a gridworld's goal has at or coins")
        if goal.get("at", "G") != "G" or type(goal.get("coins", 0)) is not int:
            raise BadWorld("at is G, coins a number")
        row, column = state["at"]
        there = "at" not in goal or state["map"][row][column] == "G"
        return there and state["coins"] >= goal.get("coins", 0)


_MOST_ORDER = 10**6


class Inventory:
    """A shop. `initial` holds integers: `stock`, `cash`, `price` a piece sells for, `cost` a piece
    is bought for, `holding` a piece costs overnight, `demand` (each day 0..demand pieces).

    An action is the number of pieces to order (an integer, paid at once, no credit); they come
    before the shop opens. `goal` is `{"cash": n, "days": d}`: at least that after that many days.
    """

    _FIELDS = ("stock", "cash", "price", "cost", "holding", "demand")

    def begin(self, initial: Json) -> Json:
        fields = initial if isinstance(initial, dict) else {}
        if set(fields) != set(self._FIELDS) or not all(
            type(value) is int and value >= 0 for value in fields.values()
        ):
            raise BadWorld(f"an inventory has the numbers {', '.join(self._FIELDS)}")
        return {**fields, "day": 0, "missed": 0}

    def step(self, state: Json, action: Json, *, seed: int, number: int) -> Json:
        if type(action) is not int or not 0 <= action <= _MOST_ORDER:
            raise Illegal("an order is a whole number of pieces")
        paid = action * state["cost"]
        if paid > state["cash"]:
            raise Illegal(f"an order of {paid} with {state['cash']} in cash")
        stock = state["stock"] + action
        wanted = chance(seed, number, state["demand"] + 1)
        sold = min(stock, wanted)
        left = stock - sold
        cash = state["cash"] - paid + sold * state["price"] - left * state["holding"]
        return {
            **state,
            "stock": left,
            "cash": cash,
            "day": state["day"] + 1,
            "missed": state["missed"] + wanted - sold,
        }

    def reached(self, state: Json, goal: Json) -> bool:
        if not isinstance(goal, dict) or set(goal) != {"cash", "days"}:
            raise BadWorld("an inventory's goal has cash and days")
        if not all(type(value) is int for value in goal.values()) or goal["days"] < 1:
            raise BadWorld("cash and days are whole numbers, and there is a day")
        return state["day"] == goal["days"] and state["cash"] >= goal["cash"]


class Automaton:
    """Conway's life on a torus. `initial` is `{"cells": [row, ...]}` of . and #, and `toggles`.

    An action is "step" (one generation) or `[row, column]` (toggle that cell, for one of the
    `toggles`). `goal` is `{"cells": [row, ...]}`, exactly, or `{"alive": n}`, at least.
    """

    def begin(self, initial: Json) -> Json:
        fields = initial if isinstance(initial, dict) else {}
        if set(fields) != {"cells", "toggles"} or type(fields["toggles"]) is not int:
            raise BadWorld("an automaton has cells and toggles")
        return {"cells": _cells(fields["cells"]), "toggles": fields["toggles"], "generation": 0}

    def step(self, state: Json, action: Json, *, seed: int, number: int) -> Json:
        del seed, number
        cells = state["cells"]
        if action == "step":
            return {**state, "cells": _generation(cells), "generation": state["generation"] + 1}
        place = action if isinstance(action, list) else []
        if len(place) != 2 or not all(type(item) is int for item in place):
            raise Illegal('an action is "step" or [row, column]')
        row, column = place
        if not (0 <= row < len(cells) and 0 <= column < len(cells[0])):
            raise Illegal("no such cell")
        if state["toggles"] < 1:
            raise Illegal("no toggle is left")
        line = cells[row]
        other = "." if line[column] == "#" else "#"
        line = line[:column] + other + line[column + 1 :]
        cells = [*cells[:row], line, *cells[row + 1 :]]
        return {**state, "cells": cells, "toggles": state["toggles"] - 1}

    def reached(self, state: Json, goal: Json) -> bool:
        if isinstance(goal, dict) and set(goal) == {"cells"}:
            return state["cells"] == _cells(goal["cells"])
        if isinstance(goal, dict) and set(goal) == {"alive"} and type(goal["alive"]) is int:
            return "".join(state["cells"]).count("#") >= goal["alive"]
        raise BadWorld("an automaton's goal has cells or alive")


def _cells(rows: Json) -> Json:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, str) for row in rows):
        raise BadWorld("cells are rows")
    if len({len(row) for row in rows}) != 1 or not rows[0] or set("".join(rows)) - set(".#"):
        raise BadWorld("rows of one length, of . and #")
    return rows


def _generation(cells: list[str]) -> list[str]:
    """The next generation (Conway: born with 3 neighbours, stays with 2 or 3)."""
    height, width = len(cells), len(cells[0])
    around = [(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]

    def lives(row: int, column: int) -> bool:
        count = sum(cells[(row + r) % height][(column + c) % width] == "#" for r, c in around)
        return count == 3 or (count == 2 and cells[row][column] == "#")

    return ["".join("#" if lives(r, c) else "." for c in range(width)) for r in range(height)]


SIMULATORS: Mapping[str, Simulator] = {
    "automaton": Automaton(),
    "gridworld": Gridworld(),
    "inventory": Inventory(),
}
"""The worlds by name. All that is random in one is `chance(seed, step, ...)`."""


# --- replaying -----------------------------------------------------------------------------


def replay(name: str, *, seed: int, initial: Json, goal: Json, actions: list[Json]) -> Replayed:
    """Play `actions` from the beginning; it ends early at an illegal one, and without a goal.

    Raises BadWorld for what the simulator cannot have, KeyError for a simulator that is none.
    """
    world = SIMULATORS[name]
    state = world.begin(initial)
    for number, action in enumerate(actions):
        try:
            state = world.step(state, action, seed=seed, number=number)
        except Illegal as error:
            return Replayed(
                state=state,
                digest=content_hash(state),
                reached=False,
                illegal=number,
                why=str(error),
            )
    return Replayed(state=state, digest=content_hash(state), reached=world.reached(state, goal))


def worker(request: Json) -> Json:
    """`{"name", "seed", "initial", "goal", "actions"}` to the fields of `Replayed`, or
    `{"bad": why}`."""
    try:
        end = replay(
            request["name"],
            seed=request["seed"],
            initial=request["initial"],
            goal=request["goal"],
            actions=request["actions"],
        )
    except BadWorld as error:
        return {"bad": str(error)}
    return {
        "state": end.state,
        "digest": end.digest,
        "reached": end.reached,
        "illegal": end.illegal,
        "why": end.why,
    }


if __name__ == "__main__":
    serve(lambda: worker)
