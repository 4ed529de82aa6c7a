"""The page of a finished run: its numbers, its form, and what it lets in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from headrace.errors import RunError
from headrace.observe.console import format_duration
from headrace.observe.report import write_report
from headrace.store.runs import RunDirectory
from headrace.store.summary import summarise
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json
from report_support import (
    Element,
    Whole,
    evaluation,
    item,
    make_run,
    parse,
    step_payload,
    step_timing,
    trajectory,
    whole_run,
    write_events,
    write_items,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole_run(tmp_path_factory.mktemp("runs"), every=5)


@pytest.fixture(scope="module")
def page(whole: Whole) -> Element:
    return read(whole.run)


def read(run: RunDirectory) -> Element:
    return parse(write_report(run.path).read_text(encoding="utf-8"))


def words(element: Element) -> str:
    return " ".join(element.text.split())


def column(page: Element, name: str) -> list[list[float | None]]:
    """The numbers behind a legend entry."""
    entries = [e for e in page.all("li") if e.text.startswith(f"{name} ")]
    return json.loads(entries[0].attributes["data-values"])


# --- numbers -------------------------------------------------------------------------------


def test_the_verdict_says_before_after_difference_interval_and_flips(page: Element) -> None:
    assert words(page.one("p", class_="verdict")) == (
        "Held-out accuracy went from 0.34 to 0.94 (+0.60, 95 % interval 0.53 to 0.67, "
        "200 tasks, same before and after; 125 newly solved, 4 lost)."
    )


def test_the_facts_are_those_of_the_summary(whole: Whole, page: Element) -> None:
    summary = summarise(whole.run)
    assert summary.seconds.training is not None
    assert summary.seconds.first_reward is not None
    shown = dict(
        zip(
            [words(term) for term in page.all("dt")],
            [words(told) for told in page.all("dd")],
            strict=True,
        )
    )
    assert shown["Steps"] == f"{summary.steps} of {summary.planned}"
    assert shown["Training took"] == format_duration(summary.seconds.training)
    assert shown["First reward after"] == format_duration(summary.seconds.first_reward)
    assert shown["Speed"] == f"{summary.tokens_per_second:.0f} tokens/s"
    assert shown["Machine"] == "2 cores, x86_64, device cpu"


def test_every_reward_on_the_page_is_the_one_of_its_event(whole: Whole, page: Element) -> None:
    steps = json.loads(page.one("main").attributes["data-steps"])
    shown = dict(zip(steps, column(page, "mean reward")[0], strict=True))
    told = {step: p["reward"]["mean"] for kind, step, p, _ in whole.events if kind == "step"}
    assert shown.pop(0) is None
    assert shown.keys() == told.keys()
    assert all(shown[step] == pytest.approx(told[step], rel=5e-4) for step in told)


def test_the_drawn_curve_has_the_height_of_its_numbers(page: Element) -> None:
    figure = page.one("section", id="reward").one("figure")
    path = figure.one("path", class_="line").attributes["d"]
    heights = [1 - float(y) / 300 for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
    numbers = [value for value in column(page, "mean reward")[0] if value is not None]
    assert heights == pytest.approx(numbers, abs=1e-3)


def test_evaluations_stand_on_the_axis_of_the_reward(whole: Whole, page: Element) -> None:
    steps = json.loads(page.one("main").attributes["data-steps"])
    shown = dict(zip(steps, column(page, "held-out")[0], strict=True))
    told = {step: p["score"] for kind, step, p, _ in whole.events if kind == "evaluation"}
    assert len(told) == 6
    assert {s: v for s, v in shown.items() if v is not None} == pytest.approx(told, rel=5e-4)


@pytest.mark.parametrize(
    ("title", "name", "path"),
    [
        ("Distance to the reference", "KL", ("kl_reference",)),
        ("Entropy", "entropy", ("entropy",)),
        ("Length of an attempt", "95th percentile", ("length", "p95")),
        ("Cut at the token limit", "cut", ("truncated",)),
        ("Gradient norm", "norm", ("gradient_norm",)),
        ("Clipped tokens", "clipped", ("clipped_share",)),
        ("Effective samples", "effective", ("effective_share",)),
        ("Not judged", "not judged", ("credit", "unscored")),
    ],
)
def test_each_small_chart_holds_the_numbers_of_the_events(
    whole: Whole, page: Element, title: str, name: str, path: tuple[str, ...]
) -> None:
    figure = next(f for f in page.all("figure") if f.text.startswith(title))
    told: list[Json] = [p for kind, _, p, _ in whole.events if kind == "step"]
    for key in path:
        told = [value[key] for value in told]
    shown = [v for v in column(figure, name)[0] if v is not None]
    assert shown == pytest.approx(told, rel=5e-4)


def test_there_are_at_most_twelve_small_charts_each_with_a_sentence(page: Element) -> None:
    figures = page.one("section", id="health").all("figure")
    assert len(figures) == 12
    assert all(len(figure.one("figcaption").text) > 20 for figure in figures)
    assert all(figure.one("svg").attributes["aria-label"] for figure in figures)


def test_a_curriculum_move_is_marked_and_labelled(page: Element) -> None:
    reward = page.one("section", id="reward")
    assert words(reward.one("span", class_="flag")) == "tier 0→1"
    assert words(reward.one("tbody").one("tr")) == "11arithmetic0 → 10.92"


def test_the_domain_row_says_tier_rates_share_and_attempts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for_step = [
        {"d": {"attempts": 10, "scored": scored, "pass_rate": rate, "pass_rate_so_far": 0.25}}
        for scored, rate in ((10, 1.0), *[(5, 0.2), (10, 0.8)] * 5)
    ]
    last = {"tier": 2, "tiers": 8, "share": 0.125}
    events = [
        ("step", i, step_payload(0.5, domains={"d": {**said["d"], **last}}), step_timing(i))
        for i, said in enumerate(for_step, 1)
    ]
    write_events(run, events)
    row = read(run).one("section", id="domains").one("tbody").one("tr")
    assert [words(cell) for cell in row.all("td")][:5] == ["2 / 7", "0.60", "0.25", "12.5%", "110"]


def test_transcripts_stand_side_by_side_with_marks_in_words(page: Element) -> None:
    articles = page.one("section", id="transcripts").all("article")
    assert len(articles) == 200
    second = articles[1]
    assert second.attributes["data-outcome"] == "gained"
    assert [words(h) for h in second.all("h4")] == [
        "Before ✗ wrong 0.00 20 tokens, cut at the token limit",
        "After ✓ solved 1.00 8 tokens",
    ]
    assert [e.text for e in second.one("div", class_="sides").all("pre")] == [
        "The answer to 1 + 0 is 4, because when we add the two numbers we get",
        "1 + 0 = 1",
    ]
    assert words(second.one("div", class_="task")).endswith("Reference answer: 1")


def test_the_filters_count_every_outcome(page: Element) -> None:
    buttons = page.one("div", class_="filters").all("button")
    assert [words(button) for button in buttons] == [
        "all 200",
        "newly solved 125",
        "lost 4",
        "still wrong 8",
        "still right 63",
    ]


def test_first_and_last_step_show_whole_groups(page: Element) -> None:
    told = page.one("section", id="attempts")
    assert [words(s) for s in told.all("summary")] == [
        "Step 1: 3 of 8 groups",
        "Step 22: 3 of 8 groups",
    ]
    group = told.all("article")[0]
    assert words(group.one("header")) == (
        "group 000001:0.0arithmetic, tier 02 of 8 solved, mean score 0.25"
    )
    assert len(group.one("div", class_="tries").all("pre")) == 8


def test_changed_recipe_values_and_the_way_on_are_said(whole: Whole, page: Element) -> None:
    details = page.one("section", id="details")
    rows = [[words(cell) for cell in row.all("td")] for row in details.all("tr")]
    assert ["algorithm.clip_high", "0.28", "0.2"] in rows
    assert not [row for row in rows if row[:1] == ["learner.learning_rate"] and len(row) == 3]
    assert f"headrace show {whole.run.path} --json" in details.text


# --- form ----------------------------------------------------------------------------------


def test_ids_are_unique_and_every_reference_to_one_resolves(page: Element) -> None:
    ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    named = {e.attributes["aria-labelledby"] for e in page.all("section")}
    assert named <= set(ids)


def test_nothing_outside_the_file_is_needed(whole: Whole, page: Element) -> None:
    markup = whole.run.report_path.read_text(encoding="utf-8")
    assert not re.search(r"(?i)https?:|//[a-z]+\.|@import|url\(", markup)
    loaders = ("src", "href", "srcset", "action", "poster", "data")
    assert not [e for e in page.all() if e.attributes.keys() & set(loaders)]
    assert not [n for e in page.all() for n in e.attributes if n.startswith("on")]


def test_the_policy_admits_the_one_script_by_its_digest(page: Element) -> None:
    script = page.one("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}';" in policy


def test_a_report_replaces_the_old_one_and_leaves_nothing_else(whole: Whole) -> None:
    before = {path.name for path in whole.run.path.iterdir()}
    assert write_report(whole.run.path) == whole.run.report_path
    assert {path.name for path in whole.run.path.iterdir()} == before


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no recipe\.json"):
        write_report(tmp_path)


# --- hostile text --------------------------------------------------------------------------

EVIL = "</script></pre><img src=x onerror=alert(1)><!-- &amp; \"' ]]> \u202e \x00 \x1b[2J"
SHOWN = EVIL.replace("\x00", "\N{REPLACEMENT CHARACTER}").replace(
    "\x1b", "\N{REPLACEMENT CHARACTER}"
)


def hostile_run(root: Path) -> RunDirectory:
    """A run in which everything that can hold text holds markup."""
    run = make_run(root)
    evil: dict[str, Json] = {"domain": EVIL, "prompt": EVIL, "completion": EVIL, "evidence": EVIL}
    items = [item(i, solved=(None, True, False)[i % 3], answer=EVIL, **evil) for i in range(3)]
    write_items(run, 0, items)
    write_items(run, 1, [{**entry, "answer": {EVIL: [EVIL]}} for entry in items])
    write_events(
        run,
        [
            ("evaluation", 0, evaluation(0.3, by_domain={EVIL: {"score": 0.2, "n": 1}}), {}),
            ("wave", 1, {"wave": "000001:0"}, {}),
            ("curriculum", 1, {"domain": EVIL, "from_tier": 0, "to_tier": 1}, {}),
            ("curriculum", 1, {"domain": "other", "from_tier": 0, "to_tier": 1}, {}),
            ("step", 1, step_payload(0.5, domains={EVIL: {"tier": 0}, "other": {}}), {}),
            ("evaluation", 1, evaluation(0.5, by_domain={EVIL: {"score": 0.5, "n": 1}}), {}),
        ],
    )
    with TrajectoryStore(run.trajectories_path) as waves:
        hostile = trajectory(f"g{EVIL}", 0, EVIL, None, prompt=EVIL, domain=EVIL)
        waves.append_wave("000001:0", [hostile])
    recipe = {"name": EVIL, "model": {"source": EVIL}, EVIL: EVIL}
    (run.path / "recipe.json").write_text(json.dumps(recipe))
    (run.path / "env.json").write_text(json.dumps({EVIL: EVIL, "machine": EVIL}))
    run.set_status("failed", reason=EVIL, hint=EVIL)
    return run


def test_text_of_models_tasks_and_errors_stays_text(tmp_path: Path) -> None:
    page = read(hostile_run(tmp_path / "<img src=x onerror=alert(1)>"))
    clean = read(whole_run(tmp_path / "other", steps=2, items=3).run)
    known = {e.name for e in clean.all()}
    assert {e.name for e in page.all()} <= known | {"ul", "li", "b", "p"}
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not [n for e in page.all() for n in e.attributes if n.startswith("on")]
    quoted = [e.text for e in page.all("pre")]
    assert quoted.count(SHOWN) == 3 * 2 + 3 + 2
    assert SHOWN in page.one("title").text
    assert SHOWN in page.one("span", class_="reason").text
    assert SHOWN in page.one("h1").text


def test_half_of_a_surrogate_pair_does_not_stop_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("evaluation", 0, evaluation(0.5), {})])
    write_items(run, 0, [item(1, solved=True, completion="broken \ud83d emoji")])
    assert "broken \N{REPLACEMENT CHARACTER} emoji" in read(run).text


def test_long_texts_keep_their_beginning_and_their_end(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("evaluation", 0, evaluation(0.5), {})])
    write_items(run, 0, [item(1, solved=True, completion="start " + "x" * 50_000 + " the end")])
    text = read(run).one("div", class_="side").one("pre").text
    assert len(text) < 4100
    assert text.startswith("start ")
    assert text.endswith(" the end")
    assert "[… 46,014 characters left out …]" in text
