"""The child process in which reasoning_gym lives: makes entries and scores answers.

Started by the pack as `python -m headrace_reasoning_gym.worker`. Requests and replies:

- `{"op": "make", "generator", "level", "index", "attempt"}` -> `{"question", "answer", "seed",
  "seconds"}`, or `{"error"}` where that attempt's seed gives no sound entry;
- `{"op": "score", "generator", "level", "seed", "digest", "text"}` -> `{"raw", "note"}`,
  `raw` None where it could not be scored; `digest` is the content hash of the question;
- `{"op": "solve", "generator", "level", "seed"}` -> `{"answer"}`, None where none is found;
- `{"op": "configuration", "generator", "level"}` -> the configuration, to be compared;
- `{"op": "describe"}` -> `{generator: levels of its curriculum, 0 without one}`.

`level` None is the generator's default configuration. Python's and numpy's global generators
are seeded before every library call, so a reply is a pure function of its request (but for
`seconds`, the CPU it took).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib
import json
import math
import random
import re
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.types import Json, content_hash
from headrace.verify.child import serve
from headrace_reasoning_gym.guards import refusal
from headrace_reasoning_gym.solve import solution

__all__ = ["LIBRARY_ERRORS", "UnsoundEntry", "Workshop", "main"]

FULL_MARKS = 0.999
KEPT = 64
_EXAMPLES = {
    "graph_color": "possible_answer",
    "rubiks_cube": "example_correct_answer",
}
_LOTS = re.compile(
    r"random|uuid|secrets|time\(\)|now\(|today\(|perf_counter|monotonic|getpid|\bid\("
)

LIBRARY_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a generator or scorer may raise on bad input; anything else ends the process."""


class UnsoundEntry(ValueError):
    """An entry that cannot be judged: its scorer rejects the reference, or pays for nothing."""


@dataclass(frozen=True, slots=True)
class Made:
    """An entry with the dataset that can score it.

    `reference` is an answer that gets full marks, None where the library knows none.
    """

    dataset: Any
    entry: dict[str, Any]
    seed: int
    reference: str | None

    def pay(self, answer: str | None) -> float:
        """The scorer's own verdict; ValueError if it is not finite."""
        _reseed(self.seed)
        raw = float(self.dataset.score_answer(answer, copy.deepcopy(self.entry)))
        if not math.isfinite(raw):
            raise ValueError(f"the score is {raw}")
        return raw


@dataclass(slots=True)
class Workshop:
    """Answers requests, and keeps the last few entries for scoring."""

    kept: OrderedDict[tuple[str, int | None, int], Made] = field(
        default_factory=OrderedDict[tuple[str, int | None, int], Made]
    )

    def answer(self, request: Json) -> Json:
        match request["op"]:
            case "describe":
                return _describe()
            case "configuration":
                return _comparable(request["generator"], request["level"])
            case "make":
                return self._make(request)
            case "score":
                return self._score(request)
            case "solve":
                return self._solve(request)
            case other:
                raise ValueError(f"no operation {other!r}")

    def _make(self, request: Json) -> Json:
        start = time.process_time()
        generator, level = request["generator"], request["level"]
        try:
            made = _sound(generator, level, _seed(generator, level, request))
        except LIBRARY_ERRORS as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}
        self._keep(generator, level, made)
        return {
            "question": made.entry["question"],
            "answer": made.reference,
            "seed": made.seed,
            "seconds": time.process_time() - start,
        }

    def _score(self, request: Json) -> Json:
        text = request["text"]
        try:
            made = self._entry(request)
            if content_hash(made.entry["question"]) != request["digest"]:
                raise UnsoundEntry("the entry could not be made again")
        except LIBRARY_ERRORS as error:
            return {"raw": None, "note": f"{type(error).__name__}: {error}"[:300]}
        try:
            note = refusal(request["generator"], text, made.entry) or ""
            raw = 0.0 if note else made.pay(text)
        except LIBRARY_ERRORS as error:
            raw, note = 0.0, f"its scorer fails on it: {type(error).__name__}: {error}"
        return {"raw": raw, "note": note[:300]}

    def _solve(self, request: Json) -> Json:
        made = self._entry(request)
        answer = made.reference or solution(request["generator"], made.entry["metadata"])
        return {"answer": answer}

    def _entry(self, request: Json) -> Made:
        generator, level, seed = request["generator"], request["level"], request["seed"]
        made = self.kept.get((generator, level, seed)) or _sound(generator, level, seed)
        self._keep(generator, level, made)
        return made

    def _keep(self, generator: str, level: int | None, made: Made) -> None:
        key = (generator, level, made.seed)
        self.kept[key] = made
        self.kept.move_to_end(key)
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)


def _sound(generator: str, level: int | None, seed: int) -> Made:
    """The entry of a seed; UnsoundEntry unless its reference is paid 1 and nothing is not."""
    kind = _factory().DATASETS[generator][0]
    configuration = _configuration(generator, level, seed)
    _reseed(seed)
    dataset = kind(config=configuration)
    entry = dataset[0]
    if not isinstance(entry["question"], str) or not entry["question"].strip():
        raise UnsoundEntry("no question")
    if generator == "codeio":
        _check_program(entry, dataset, seed)
    made = Made(dataset, entry, seed, _reference(generator, entry))
    if max(made.pay(""), made.pay(None)) >= FULL_MARKS:
        raise UnsoundEntry("an empty answer gets full marks")
    if made.reference is not None and (
        refusal(generator, made.reference, entry) or made.pay(made.reference) < FULL_MARKS
    ):
        raise UnsoundEntry("the reference answer does not get full marks")
    return made


def _check_program(entry: dict[str, Any], dataset: Any, seed: int) -> None:
    """UnsoundEntry for a program of codeio that failed, or may do something else when run again.

    Its text is part of the question.
    """
    if not entry["metadata"]["input_data"]:
        raise UnsoundEntry("its program failed")
    if _LOTS.search(entry["question"]):
        raise UnsoundEntry("its program draws lots, or looks at the clock")
    _reseed(seed)
    again = dataset[0]
    if (again["question"], again["answer"]) != (entry["question"], entry["answer"]):
        raise UnsoundEntry("its program is not a function of its input")


def _reference(generator: str, entry: dict[str, Any]) -> str | None:
    """The entry's answer; some generators keep an example of one in the metadata instead."""
    answer = entry["answer"]
    if answer is None and generator in _EXAMPLES:
        answer = entry["metadata"][_EXAMPLES[generator]] or None
        answer = json.dumps(answer) if isinstance(answer, dict) else answer
    if answer is not None and not isinstance(answer, str):
        raise UnsoundEntry(f"the reference answer is a {type(answer).__name__}")
    return answer


def _configuration(generator: str, level: int | None, seed: int) -> Any:
    if level is None:
        return _factory().DATASETS[generator][1](seed=seed, size=1)
    curriculum = _factory().CURRICULA[generator]()
    curriculum.set_global_level(level)
    return curriculum.generate_configuration({"seed": seed, "size": 1})


def _describe() -> dict[str, int]:
    levels: dict[str, int] = {}
    curricula = _factory().CURRICULA
    for name in _factory().DATASETS:
        attributes = curricula[name]().attributes.values() if name in curricula else ()
        levels[name] = max((len(attribute.levels) for attribute in attributes), default=0)
    return levels


def _comparable(generator: str, level: int | None) -> str:
    configuration = dataclasses.asdict(_configuration(generator, level, 0))
    return repr(sorted(configuration.items()))


def _seed(generator: str, level: int | None, request: Json) -> int:
    key = f"{generator}/{level}/{request['index']}/{request['attempt']}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1


def _reseed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


def _factory() -> Any:
    """The library's registry of generators; the first import takes seconds."""
    return importlib.import_module("reasoning_gym").factory


def load() -> Workshop:
    """Import reasoning_gym now, so that no request pays for it."""
    _factory()
    return Workshop()


def main() -> None:
    """Serve requests until the parent is gone."""
    serve(lambda: load().answer)


if __name__ == "__main__":
    main()
