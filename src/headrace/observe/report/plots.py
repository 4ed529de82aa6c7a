"""Line charts over steps as inline SVG, with words and numbers outside of it.

The SVG holds shapes only and is stretched to its box, so that text keeps its size on a phone
as on paper; strokes do not scale. The values sit beside the shapes in a data attribute, for
the readout of the page's script. Knows nothing of runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.observe.report.markup import Html, join, tag
from headrace.observe.report.values import brief, sparse

__all__ = ["Axis", "Band", "Chart", "Dots", "Line", "Mark", "chart", "sparkline"]

WIDTH, HEIGHT = 1000.0, 300.0
MOST_POINTS = 1000
MOST_LABELS = 12
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One value a step (None: not measured). `pool` says how steps are put together when
    there are more than a screen can show."""

    name: str
    values: Values
    tone: Literal["main", "second"] = "main"
    pool: Literal["mean", "max"] = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range a step, drawn behind the lines."""

    name: str
    low: Values
    high: Values
    tone: Literal["near", "far"] = "near"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Values at some steps only, each with an interval."""

    name: str
    values: Values
    low: Values
    high: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a step: a vertical line with a label."""

    step: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The steps that all values speak of, and how they were put together: `width` a point."""

    steps: tuple[int, ...]
    first: int
    last: int

    @property
    def width(self) -> int:
        return -(-len(self.steps) // MOST_POINTS)

    def x(self, step: float) -> float:
        """Where a step stands, 0..1."""
        if self.last == self.first:
            return 0.5
        return (step - self.first) / (self.last - self.first)

    @property
    def points(self) -> list[int]:
        """One step for each point: the last of those put together."""
        return [self.steps[min(i + self.width, len(self.steps)) - 1] for i in self._starts()]

    def _starts(self) -> range:
        return range(0, len(self.steps), max(self.width, 1))

    def pooled(self, values: Values, pool: Literal["mean", "max"] = "mean") -> list[float | None]:
        """`values` (one a step) as one a point."""
        return [_pool(values[i : i + self.width], pool) for i in self._starts()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`label` says in words what it shows. `low` and `high` are values that the vertical axis
    reaches at least; None follows the data."""

    label: str
    lines: tuple[Line, ...]
    bands: tuple[Band, ...] = ()
    dots: tuple[Dots, ...] = ()
    marks: tuple[Mark, ...] = ()
    low: float | None = None
    high: float | None = None


def _pool(values: Values, pool: Literal["mean", "max"]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if pool == "max" else math.fsum(known) / len(known)


# --- a chart -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Frame:
    axis: Axis
    low: float
    high: float

    def x(self, step: float) -> str:
        return f"{self.axis.x(step) * WIDTH:.1f}"

    def y(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        return f"{(1 - min(max(share, -0.5), 1.5)) * HEIGHT:.1f}"


def chart(spec: Chart, axis: Axis) -> Html:
    """The plot, its axes, its legend with the latest values. Meant for the inside of a figure."""
    ticks = _scale(spec, axis)
    frame = _Frame(axis, ticks[0], ticks[-1])
    shapes = [_grid(ticks, frame)]
    shapes += _marks(spec.marks, frame)
    shapes += [_band(band, frame) for band in spec.bands]
    shapes += [_line(line, frame) for line in spec.lines]
    shapes += [_dots(dots, frame) for dots in spec.dots]
    svg = tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=spec.label,
    )
    area = tag(
        "div",
        svg,
        tag("i", tag("b"), class_="cursor", hidden=True),
        *_mark_labels(spec.marks, axis),
        class_="area",
        tabindex="0",
    )
    plot = tag("div", _y_labels(ticks, frame), area, _x_labels(axis), class_="plot")
    return join([_legend(spec, axis), plot])


def _scale(spec: Chart, axis: Axis) -> list[float]:
    """Ticks of the vertical axis; the first and the last are its ends."""
    known = [v for line in spec.lines for v in axis.pooled(line.values, line.pool)]
    for ranged in (*spec.bands, *spec.dots):
        known += [*axis.pooled(ranged.low), *axis.pooled(ranged.high)]
    values = [value for value in known if value is not None]
    low = min(values, default=0.0) if spec.low is None else min([spec.low, *values])
    high = max(values, default=1.0) if spec.high is None else max([spec.high, *values])
    return nice_ticks(low, high)


def nice_ticks(low: float, high: float) -> list[float]:
    """3 to 6 round numbers, evenly apart, from at or below `low` to at or above `high`.

    >>> nice_ticks(0.0, 0.94), nice_ticks(0.0, 0.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) / 3 or 1.0
        low, high = max(low - room, 0.0) if low >= 0 else low - room, high + room
    rough = high / 4 - low / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _grid(ticks: Sequence[float], frame: _Frame) -> Html:
    lines = "".join(f"M0 {frame.y(tick)}H{WIDTH:.0f}" for tick in ticks)
    return tag("path", class_="grid", d=lines)


def _line(line: Line, frame: _Frame) -> Html:
    axis = frame.axis
    pooled = axis.pooled(line.values, line.pool)
    return _stroke(list(zip(axis.points, pooled, strict=True)), frame, line.tone)


def _stroke(points: Sequence[tuple[int, float | None]], frame: _Frame, tone: str) -> Html:
    """Lines through neighbours; a point without any is a dot, or it would not be seen."""
    runs = _runs(points, frame)
    lines = "".join("M" + "L".join(run) for run in runs if len(run) > 1)
    lone = "".join(f"M{run[0]}h0" for run in runs if len(run) == 1)
    return join(
        tag("path", class_=f"{kind} {tone}", d=path)
        for kind, path in (("line", lines), ("lone", lone))
        if path
    )


def _runs(points: Sequence[tuple[int, float | None]], frame: _Frame) -> list[list[str]]:
    """Coordinates of neighbours that were all measured."""
    runs: list[list[str]] = [[]]
    for step, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{frame.x(step)} {frame.y(value)}")
    return [run for run in runs if run]


def _band(band: Band, frame: _Frame) -> Html:
    axis = frame.axis
    low, high = axis.pooled(band.low), axis.pooled(band.high)
    both = [
        (a, b) if a is not None and b is not None else (None, None)
        for a, b in zip(low, high, strict=True)
    ]
    lower = _runs([(s, pair[0]) for s, pair in zip(axis.points, both, strict=True)], frame)
    upper = _runs([(s, pair[1]) for s, pair in zip(axis.points, both, strict=True)], frame)
    path = "".join(
        "M" + "L".join([*down, *reversed(up)]) + "Z" for down, up in zip(lower, upper, strict=True)
    )
    return tag("path", class_=f"band {band.tone}", d=path)


def _dots(dots: Dots, frame: _Frame) -> Html:
    whiskers, points = "", ""
    for step, value, low, high in zip(
        frame.axis.steps, dots.values, dots.low, dots.high, strict=True
    ):
        if value is None:
            continue
        x = frame.x(step)
        points += f"M{x} {frame.y(value)}h0"
        if low is not None and high is not None:
            whiskers += f"M{x} {frame.y(low)}V{frame.y(high)}"
    return join([tag("path", class_="whisker", d=whiskers), tag("path", class_="dots", d=points)])


def _marks(marks: Sequence[Mark], frame: _Frame) -> list[Html]:
    """Lines from top to bottom, or short ticks at the top where there are many."""
    end = HEIGHT if len(marks) <= MOST_LABELS else HEIGHT / 25
    path = "".join(f"M{frame.x(step)} 0V{end:.0f}" for step in sorted({m.step for m in marks}))
    return [tag("path", class_="mark", d=path)] if marks else []


def _mark_labels(marks: Sequence[Mark], axis: Axis) -> list[Html]:
    """Labels on up to three rows; one that would cover another is left to the list below."""
    if len(marks) > MOST_LABELS:
        return []
    free = [-1.0, -1.0, -1.0]
    labels: list[Html] = []
    for mark in sorted(marks, key=lambda mark: mark.step):
        x = axis.x(mark.step)
        row = next((row for row, end in enumerate(free) if end <= x), None)
        if row is None:
            continue
        free[row] = x + 0.02 + 0.011 * len(mark.label)
        side = "flag left" if x > 0.8 else "flag"
        style = f"left:{x:.2%};top:{row * 1.3 + 0.1:.1f}em"
        labels.append(tag("span", mark.label, class_=side, style=style))
    return labels


def _y_labels(ticks: Sequence[float], frame: _Frame) -> Html:
    shown = ticks if len(ticks) <= 4 else ticks[:: 2 - len(ticks) % 2]
    return tag(
        "div",
        *(
            tag("span", brief(tick), style=f"top:{float(frame.y(tick)) / HEIGHT:.2%}")
            for tick in shown
        ),
        class_="ylabels",
        aria_hidden="true",
    )


def _x_labels(axis: Axis) -> Html:
    if axis.first == axis.last:
        steps = [axis.first]
    else:
        ticks = nice_ticks(float(axis.first), float(axis.last))
        steps = [round(t) for t in ticks if t == round(t) and axis.first <= t <= axis.last]
    return tag(
        "div",
        *(tag("span", f"{step:,}", style=f"left:{axis.x(step):.2%}") for step in steps),
        class_="xlabels",
        aria_hidden="true",
    )


# --- the numbers beside it -----------------------------------------------------------------


def _legend(spec: Chart, axis: Axis) -> Html:
    """Names, each with its latest value; the script writes those of the pointed step there."""
    lines = [
        _entry(line.name, f"line {line.tone}", axis.pooled(line.values, line.pool))
        for line in spec.lines
    ]
    dots = [_entry(dots.name, "dots", axis.pooled(dots.values)) for dots in spec.dots]
    bands = [
        _entry(band.name, f"band {band.tone}", axis.pooled(band.low), axis.pooled(band.high))
        for band in spec.bands
    ]
    return tag("ul", *lines, *dots, *bands, class_="legend")


def _entry(name: str, kind: str, *columns: Sequence[float | None]) -> Html:
    data = [[sparse(value) for value in column] for column in columns]
    latest = [next((v for v in reversed(column) if v is not None), None) for column in columns]
    return tag(
        "li",
        tag("i", class_=f"key {kind}"),
        f"{name} ",
        tag("output", " to ".join(brief(value) for value in latest)),
        data_values=json.dumps(data, separators=(",", ":")),
    )


def sparkline(values: Values, label: str) -> Html:
    """Shares (0..1) as a line of a word's height."""
    size = max(-(-len(values) // 60), 1)
    points = [_pool(values[i : i + size], "mean") for i in range(0, len(values), size)]
    axis = Axis(steps=tuple(range(len(points))), first=0, last=max(len(points) - 1, 0))
    frame = _Frame(axis, -0.05, 1.05)
    return tag(
        "svg",
        _stroke(list(zip(axis.steps, points, strict=True)), frame, "main"),
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        class_="spark",
    )
