"""The top of the page: what was run, how it stands, and the result in a sentence."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime

from headrace.observe.console import format_duration
from headrace.observe.report.gather import Comparison, Material
from headrace.observe.report.markup import Html, tag
from headrace.observe.report.parts import facts
from headrace.observe.report.values import count, fixed, signed
from headrace.store.lenient import integer, number, text
from headrace.types import Json

__all__ = ["heading", "machine", "verdict"]

_STATES = {
    "done": ("✓", "done", "good"),
    "running": ("…", "running", "part"),
    "interrupted": ("‖", "interrupted", "part"),
    "failed": ("✗", "failed", "bad"),
    "dead": ("✗", "stopped without a word", "bad"),
}


def heading(material: Material) -> Html:
    """Name, status, verdict and the facts of a run."""
    return tag(
        "header",
        tag("p", "headrace run report", class_="eyebrow"),
        tag(
            "h1",
            tag("bdi", material.recipe_name),
            " ",
            tag("small", "on ", tag("bdi", material.model)),
        ),
        _status(material),
        tag("p", verdict(material), class_="verdict"),
        _facts(material),
        _problems(material),
    )


def _status(material: Material) -> Html:
    status = material.status
    if status is None:
        return tag("p", tag("b", "? status unknown", class_="pill unknown"), class_="status")
    symbol, word, tone = _STATES[status.state]
    hint = text(status.fields, "hint") if status.state == "failed" else ""
    if not hint and status.state in ("interrupted", "dead", "failed"):
        hint = f"headrace resume {shlex.quote(str(material.path))}"
    return tag(
        "div",
        tag("b", f"{symbol} {word}", class_=f"pill {tone}"),
        tag("span", status.reason, class_="reason") if status.reason else None,
        tag("span", tag("b", "hint: "), tag("bdi", hint), class_="hint") if hint else None,
        class_="status",
    )


def _problems(material: Material) -> Html | None:
    if not material.problems:
        return None
    return tag(
        "div",
        tag("p", tag("b", "Not everything of this run could be read.")),
        tag("ul", *(tag("li", problem) for problem in material.problems)),
        class_="problems",
        role="note",
    )


# --- the verdict ---------------------------------------------------------------------------


def verdict(material: Material) -> str:
    """The result of a run in one or two sentences, at any point of its life."""
    evaluations = material.evaluations
    first = evaluations[0] if evaluations else None
    last = evaluations[-1] if len(evaluations) > 1 else None
    if first is not None and last is not None and material.comparison is not None:
        return _compared(material, first.score, last.score, material.comparison)
    if first is not None and last is not None:
        return (
            f"Held-out {_measure(material)} went from {fixed(first.score)} to "
            f"{fixed(last.score)} after step {last.step} ({count(last.n, 'task')}); the paired "
            "comparison is made at the end of the run."
        )
    if first is not None:
        return (
            f"Held-out {_measure(material)} before training: {fixed(first.score)} "
            f"({_interval(material.confidence, first.low, first.high)}, "
            f"{count(first.n, 'task')}). There is no evaluation after training to compare it "
            f"with yet. {_rewards(material)}"
        )
    return f"No held-out evaluation was recorded. {_rewards(material)}"


def _compared(
    material: Material, before: float | None, after: float | None, found: Comparison
) -> str:
    digits = _digits(before, after, found.value)
    interval = _interval(found.confidence, found.low, found.high, digits)
    sentence = (
        f"Held-out {_measure(material)} went from {fixed(before, digits)} to "
        f"{fixed(after, digits)} ({signed(found.value, digits)}, {interval}, "
        f"{count(found.n, 'task')}, same before and after{_flips(material, found)})."
    )
    if found.low is None or found.high is None or found.low > 0:
        return sentence
    if found.high < 0:
        return f"{sentence} The model got worse."
    return f"{sentence} The interval includes no change at all: this run shows no clear effect."


def _digits(*values: float | None) -> int:
    """Two where they say everything, else three: so that after - before is the difference."""
    exact = (value is None or abs(value * 100 - round(value * 100)) < 1e-6 for value in values)
    return 2 if all(exact) else 3


def _flips(material: Material, found: Comparison) -> str:
    if found.gained is None or found.lost is None:
        return ""
    up, down = ("newly solved", "lost") if _binary(material) else ("scored higher", "lower")
    return f"; {found.gained:,} {up}, {found.lost:,} {down}"


def _interval(confidence: float, low: float | None, high: float | None, digits: int = 2) -> str:
    return f"{confidence * 100:.4g} % interval {fixed(low, digits)} to {fixed(high, digits)}"


def _binary(material: Material) -> bool:
    items = [*(material.before or []), *(material.after or [])]
    return bool(items) and all(item.score in (0.0, 1.0, None) for item in items)


def _measure(material: Material) -> str:
    return "accuracy" if _binary(material) else "score"


def _rewards(material: Material) -> str:
    known = [(e.step, number(e.payload, "reward", "mean")) for e in material.steps]
    judged = [(step, reward) for step, reward in known if reward is not None]
    if not material.steps:
        return "No training step has finished yet."
    if not judged:
        return f"{count(len(known), 'step')} finished, and no attempt could be judged."
    if len(judged) == 1:
        return f"Step {judged[0][0]} had a mean reward of {fixed(judged[0][1])}."
    (first, start), (last, end) = judged[0], judged[-1]
    return (
        f"The mean reward of the training attempts went from {fixed(start)} in step {first} "
        f"to {fixed(end)} in step {last}."
    )


# --- the facts -----------------------------------------------------------------------------


def _facts(material: Material) -> Html:
    status, pace = material.status, material.pace
    planned = integer(material.recipe, "steps")
    done = f"{len(material.steps):,}"
    attempts = status.attempts if status else 0
    return facts(
        ("Steps", f"{done} of {planned:,}" if planned is not None else done),
        ("Started", _moment(status.created) if status else None),
        ("Training took", _duration(pace.training)),
        ("First reward after", _duration(pace.first_reward)),
        ("Speed", _speed(pace.tokens_per_second)),
        ("Started or resumed", f"{attempts} times" if attempts > 1 else None),
        ("Machine", machine(material.env)),
    )


def machine(env: Mapping[str, Json]) -> str:
    """The machine in a few words; "" where the run does not say."""
    cores, threads = integer(env, "cores"), integer(env, "threads")
    device = text(env, "device")
    words = [
        count(cores, "core") if cores is not None else "",
        count(threads, "thread") if threads is not None and threads != cores else "",
        text(env, "machine"),
        f"device {device}" if device not in ("", "auto") else "",
    ]
    return ", ".join(word for word in words if word)


def _moment(iso: str) -> str:
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return iso


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def _speed(tokens: float | None) -> str | None:
    return None if tokens is None else f"{tokens:,.0f} tokens/s"
