"""What a text must look like before a generator's own scorer may see it.

Three kinds of condition, each because of how a scorer of reasoning-gym 0.1.25 behaves:

- it hands the text to sympy's parser or to `eval`, and both run any code in it;
- it raises on a text of another form, which would be a failure of the verifier, not a wrong
  answer (`prime_factorization`, `boxnet`, `game_of_life`);
- it gives full marks for wrong answers. `puzzle24` takes any four numbers and cuts 24.9 down to
  24; `game_of_life_halting` asks only whether the text is empty; `coin_flip` takes `0` for
  `0.387`; `gsm_symbolic` takes the first number of several, without its sign, and
  `fraction_simplification` the first fraction; `letter_jumble` and `spell_backward` stop reading
  where the reference ends; `polynomial_equations`, `graph_color`, `rush_hour` and `sokoban`
  overlook what they cannot read; `knights_knaves` finds its answer in the example that its own
  question gives; `time_intervals` gives 0.9993 for a minute's error, and 1 to `0 days` whatever
  follows.

A text that fails could not be right, so it is wrong unseen.

Credit in parts is not passed on at all. Most scorers give length(reference) / length(text) to a
text that contains the reference anywhere, as the question and a list of candidates may; grids
and numbers of another task earn up to 0.99; half of a plan is paid for by any plan.

Pure functions of text and entry; run in the worker, import no reasoning_gym, and evaluate
nothing but integer arithmetic.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from headrace.types import Json

__all__ = ["refusal"]

_Condition = Callable[[str, Mapping[str, Any]], bool]

_FORM = re.compile(r"[A-Za-z0-9\s+\-*/^().,]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_FUNCTION = re.compile(r"Abs|abs|a?(?:sin|cos|tan)h?|sec|csc|cot|exp|ln|log|sqrt|pi")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_RATIO = re.compile(r"-?\d{1,30}(?:\.\d{1,30}|/\d{1,30})?", re.ASCII)
_FRACTION = re.compile(r"-?\d+ ?/ ?-?\d+|\\d?frac ?\{ ?\d+ ?\} ?\{ ?\d+ ?\}", re.ASCII)
_ROLL = re.compile(r"(?:(?:and )?[A-Za-z]+ is (?:an? )?[A-Za-z]+[,.;]* ?)+")
_MOVES = re.compile(r"[UDLR]+")
_CAR_MOVE = re.compile(r"[A-Z][+-]\d{1,2}", re.ASCII)
_FACTORS = re.compile(r"\s*\d{1,30}\s*(?:×\s*\d{1,30}\s*)*", re.ASCII)
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_HARMLESS = (
    ast.Expression,
    ast.Constant,
    ast.List,
    ast.Load,
    ast.Name,
    ast.Tuple,
    ast.UnaryOp,
    ast.USub,
)


def refusal(generator: str, text: str, entry: Mapping[str, Any]) -> str | None:
    """Why `text` is wrong unseen, or None if the generator's scorer may judge it.

    `entry` is what the generator made: question, reference answer, metadata.
    """
    for condition, reason in _CONDITIONS.get(generator, ()):
        if not condition(text, entry):
            return reason
    return None


def _is_expression(text: str, _entry: Mapping[str, Any]) -> bool:
    """Numbers, one-letter names and common functions in arithmetic; nothing sympy would run."""
    words = _WORD.findall(text)
    return _FORM.fullmatch(text) is not None and all(
        len(word) == 1 or _FUNCTION.fullmatch(word) for word in words
    )


def _is_inert(text: str, _entry: Mapping[str, Any]) -> bool:
    """Whether `eval(text)` can do nothing: it is no Python, or names and literals only."""
    try:
        tree = ast.parse(text.lstrip(" \t"), mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (RecursionError, MemoryError):
        return False
    return all(isinstance(node, _HARMLESS) for node in ast.walk(tree))


def _is_product(text: str, _entry: Mapping[str, Any]) -> bool:
    return _FACTORS.fullmatch(text) is not None


def _is_grid(text: str, _entry: Mapping[str, Any]) -> bool:
    rows = _parsed(text)
    return isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def _is_plan(text: str, _entry: Mapping[str, Any]) -> bool:
    steps = _parsed(text)
    return isinstance(steps, list) and all(
        isinstance(step, dict) and all(isinstance(action, str) for action in step.values())
        for step in steps
    )


def _has_its_numbers(text: str, entry: Mapping[str, Any]) -> bool:
    used = [int(digits) for digits in re.findall(r"\d{1,9}", text, re.ASCII)]
    return sorted(used) == sorted(entry["metadata"]["numbers"])


def _makes_24(text: str, _entry: Mapping[str, Any]) -> bool:
    try:
        return _value(ast.parse(text.strip(), mode="eval").body) == 24
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False


def _is_reference(text: str, entry: Mapping[str, Any]) -> bool:
    return text.strip().lower() == str(entry["answer"]).strip().lower()


def _is_the_number(text: str, entry: Mapping[str, Any]) -> bool:
    numbers = _NUMBER.findall(text)
    return len(numbers) == 1 and float(numbers[0]) == float(entry["answer"])


def _is_close(text: str, entry: Mapping[str, Any]) -> bool:
    """Within what coin_flip's own scorer allows."""
    said = text.strip().replace(",", "")
    if not _RATIO.fullmatch(said):
        return False
    try:
        return abs(Fraction(said) - Fraction(entry["answer"])) <= Fraction(1, 10_000)
    except ZeroDivisionError:
        return False


def _is_one_fraction(text: str, _entry: Mapping[str, Any]) -> bool:
    return _FRACTION.fullmatch(" ".join(text.strip(" $").split())) is not None


def _is_list_of_numbers(text: str, _entry: Mapping[str, Any]) -> bool:
    return all(_NUMBER.fullmatch(part.strip()) for part in text.split(","))


def _is_roll(text: str, _entry: Mapping[str, Any]) -> bool:
    return _ROLL.fullmatch(" ".join(text.split())) is not None


def _is_car_moves(text: str, _entry: Mapping[str, Any]) -> bool:
    return all(_CAR_MOVE.fullmatch(move) for move in text.split()) and bool(text.strip())


def _colours_its_nodes(text: str, entry: Mapping[str, Any]) -> bool:
    colouring, nodes = _parsed(text), {str(node) for node in entry["metadata"]["possible_answer"]}
    return isinstance(colouring, dict) and set(colouring) == nodes


def _is_moves(text: str, _entry: Mapping[str, Any]) -> bool:
    return _MOVES.fullmatch(text.strip().upper()) is not None


def _value(node: ast.expr) -> Fraction:
    """The exact value of integers under + - * /; ValueError for anything else."""
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError(type(node).__name__)


def _parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_EXPRESSION = (_is_expression, "not a plain arithmetic expression")
_LITERAL = (_is_inert, "a Python expression that is no literal")
_EXACT = (_is_reference, "not the reference answer")

_CONDITIONS: Mapping[str, tuple[tuple[_Condition, str], ...]] = {
    "countdown": (_EXPRESSION,),
    "intermediate_integration": (_EXPRESSION,),
    "polynomial_multiplication": (_EXPRESSION,),
    "simple_integration": (_EXPRESSION,),
    "puzzle24": (
        _EXPRESSION,
        (_has_its_numbers, "other numbers than the given ones"),
        (_makes_24, "not exactly 24"),
    ),
    "binary_matrix": (_LITERAL,),
    "n_queens": (_LITERAL,),
    "spiral_matrix": (_LITERAL,),
    "string_insertion": (_LITERAL,),
    "prime_factorization": ((_is_product, "no product of whole numbers"),),
    "boxnet": ((_is_plan, "no JSON list of actions by agent"),),
    "game_of_life": ((_is_grid, "no JSON list of rows"),),
    "game_of_life_halting": (_EXACT,),
    "letter_jumble": (_EXACT,),
    "spell_backward": (_EXACT,),
    "time_intervals": (_EXACT,),
    "fraction_simplification": ((_is_one_fraction, "not one fraction"),),
    "gsm_symbolic": ((_is_the_number, "not the one number"),),
    "coin_flip": ((_is_close, "not within 0.0001 of the reference answer"),),
    "knights_knaves": ((_is_roll, "no list of who is what"),),
    "polynomial_equations": ((_is_list_of_numbers, "no list of numbers"),),
    "graph_color": ((_colours_its_nodes, "no colour for each node and for no other"),),
    "rush_hour": ((_is_car_moves, "no sequence of moves"),),
    "sokoban": ((_is_moves, "no sequence of moves"),),
}
