"""The plots' own mathematics: ticks, gaps, pooling, and numbers as they are spelled."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.report.markup import Html, clip, tag
from headrace.observe.report.plots import Axis, Band, Chart, Line, chart, nice_ticks, sparkline
from headrace.observe.report.values import brief, plain
from headrace.store.lenient import number, share
from report_support import parse

_FINITE = st.floats(-1e300, 1e300)


@given(_FINITE, _FINITE)
def test_ticks_are_few_even_and_reach_both_ends(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    assert 2 <= len(ticks) <= 7
    assert ticks[0] <= low + step * 1e-6
    assert ticks[-1] >= high - step * 1e-6
    assert all(abs(y - x - step) <= 1e-6 * step for x, y in pairwise(ticks))


def test_a_band_is_drawn_only_where_both_its_ends_are_known() -> None:
    axis = Axis(steps=(1, 2, 3, 4), first=1, last=4)
    band = Band(name="b", low=[0.0, None, 0.5, 0.5], high=[1.0, 1.0, 1.0, 1.0])
    drawn = parse(chart(Chart(label="", lines=(), bands=(band,), low=0, high=1), axis))
    assert drawn.one("path", class_="band").attributes["d"] == (
        "M0.0 300.0L0.0 0.0ZM666.7 150.0L1000.0 150.0L1000.0 0.0L666.7 0.0Z"
    )


def test_more_steps_than_a_screen_has_are_pooled_to_means_or_maxima() -> None:
    axis = Axis(steps=tuple(range(1, 2002)), first=1, last=2001)
    spike = [0.0] * 2001
    spike[1000] = 9.0
    assert axis.width == 3
    assert axis.points[:2] == [3, 6]
    assert axis.points[-1] == 2001
    assert max(v for v in axis.pooled(spike) if v is not None) == 3.0
    line = Line(name="n", values=spike, pool="max")
    assert max(v for v in axis.pooled(line.values, line.pool) if v is not None) == 9.0


@given(st.lists(st.none() | st.floats(-5, 5), max_size=200))
def test_a_sparkline_has_at_most_sixty_points_and_stays_near_its_line(
    values: list[float | None],
) -> None:
    paths = parse(sparkline(values, "label")).all("path")
    drawn = "".join(path.attributes["d"] for path in paths)
    points = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", drawn)
    assert len(points) <= 60
    assert all(-150 <= float(y) <= 450 for _, y in points)
    assert bool(points) == any(value is not None for value in values)


def test_odd_values_are_no_numbers() -> None:
    odd = [True, "1", None, [1], {}, 10**400, float("inf"), float("nan")]
    assert [number(value) for value in odd] == [None] * len(odd)
    assert [share(v) for v in (0, 1, 0.5, -0.1, 1.1)] == [0.0, 1.0, 0.5, None, None]
    assert number({"a": {"b": 2}}, "a", "b") == 2.0
    assert number({"a": 2}, "a", "b") is None


@given(_FINITE.filter(lambda x: x == 0 or abs(x) > 1e-290))
def test_a_spelled_number_reads_as_the_number_it_was(value: float) -> None:
    read = float(brief(value).replace("\N{MINUS SIGN}", "-"))
    assert abs(read - value) <= abs(value) * 5.001e-4


def test_a_value_nested_beyond_reason_is_named_as_such() -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    assert plain(deep) == "(nested too deeply to be shown)"


@given(st.text())
def test_any_text_comes_back_as_text(text: str) -> None:
    tree = parse(tag("p", text, title=text))
    assert tree.one("p").text == tree.one("p").attributes["title"]
    assert not tree.one("p").all()
    assert len(tree.one("p").text) == len(text.replace("\r\n", "\n"))


def test_markup_goes_through_and_a_joined_string_of_it_does_not() -> None:
    bold = tag("b", "x")
    assert tag("p", bold) == "<p><b>x</b></p>"
    assert tag("p", f"{bold}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
    assert isinstance(bold, Html)


@given(st.text(max_size=400), st.integers(1, 50))
def test_a_clipped_text_keeps_both_ends_and_counts_what_is_missing(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    if len(text) <= limit:
        assert clipped == text
        return
    kept = re.split(r"\n\[… [\d,]+ characters left out …\]\n", clipped)
    assert text.startswith(kept[0])
    assert text.endswith(kept[-1])
    assert f"[… {len(text) - limit:,} characters left out …]" in clipped
