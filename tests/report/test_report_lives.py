"""The page of a run at any point of its life, and of one whose files are odd or damaged."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.observe.report import write_report
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Json
from report_support import (
    Appended,
    Element,
    domain_state,
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


def read(run: RunDirectory) -> Element:
    return parse(write_report(run.path).read_text(encoding="utf-8"))


def words(element: Element) -> str:
    return " ".join(element.text.split())


def verdict(page: Element) -> str:
    return words(page.one("p", class_="verdict"))


def problems(page: Element) -> str:
    return " ".join(words(note) for note in page.all("div", class_="problems"))


def step(number: int, reward: float = 0.5) -> Appended:
    return ("step", number, step_payload(reward), step_timing(number))


def compared(low: float, high: float) -> Appended:
    middle = (low + high) / 2
    payload = {"suite": "heldout", "value": middle, "low": low, "high": high, "n": 200}
    return ("comparison", 2, {**payload, "gained": 9, "lost": 8, "confidence": 0.9}, {})


# --- points of a life ----------------------------------------------------------------------


def test_a_run_that_has_just_begun_says_what_is_not_there_yet(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with run.lock():
        page = read(run)
    assert words(page.one("b", class_="pill")) == "… running"
    assert verdict(page) == (
        "No held-out evaluation was recorded. No training step has finished yet."
    )
    said = [words(p) for p in page.all("p", class_="absent")]
    assert said == [
        "The first evaluation is not done yet.",
        "No training step has finished yet.",
        "There are no steps to judge by yet.",
        "This run holds no record of audits.",
        "No step has told of any domain yet.",
        "There is no evaluation to take texts from. Attempts from training follow below.",
        "No attempts are on disk yet.",
    ]
    assert not page.all("figure")


def test_a_run_that_only_knows_its_start_shows_it_without_an_after(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("evaluation", 0, evaluation(0.34), {}), step(1, 0.16), step(2, 0.5)])
    write_items(run, 0, [item(i, solved=i == 0) for i in range(3)])
    page = read(run)
    assert verdict(page) == (
        "Held-out accuracy before training: 0.34 (95 % interval 0.27 to 0.41, 200 tasks). There "
        "is no evaluation after training to compare it with yet. The mean reward of the training "
        "attempts went from 0.16 in step 1 to 0.50 in step 2."
    )
    article = page.one("section", id="transcripts").all("article")[0]
    assert [words(h) for h in article.all("h4")] == ["Before ✓ solved 1.00 20 tokens"]
    buttons = page.one("div", class_="filters").all("button")
    assert [words(button) for button in buttons] == ["all 3", "solved 1", "not solved 2"]


def test_between_two_evaluations_no_comparison_is_claimed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    first, second = evaluation(0.34), evaluation(0.62)
    write_events(run, [("evaluation", 0, first, {}), step(1), ("evaluation", 1, second, {})])
    assert verdict(read(run)) == (
        "Held-out score went from 0.34 to 0.62 after step 1 (200 tasks); the paired comparison "
        "is made at the end of the run."
    )


@pytest.mark.parametrize(
    ("low", "high", "ending"),
    [
        (0.1, 0.3, "; 9 scored higher, 8 lower)."),
        (-0.1, 0.3, "The interval includes no change at all: this run shows no clear effect."),
        (-0.3, -0.1, "The model got worse."),
    ],
)
def test_the_verdict_claims_no_more_than_the_interval(
    tmp_path: Path, low: float, high: float, ending: str
) -> None:
    run = make_run(tmp_path)
    evaluations: list[Appended] = [("evaluation", s, evaluation(0.5), {}) for s in (0, 2)]
    write_events(run, [evaluations[0], step(1), step(2), evaluations[1], compared(low, high)])
    assert verdict(read(run)).endswith(ending)


def test_a_run_without_an_evaluation_says_whose_choice_that_was(tmp_path: Path) -> None:
    asked = make_run(tmp_path, {"evaluate": {"items": 0}})
    assert "The recipe asks for no evaluation" in words(read(asked).one("section", id="heldout"))
    ended = make_run(tmp_path)
    assert "ended before its first" in words(read(ended).one("section", id="heldout"))


def test_the_difference_is_that_of_the_scores_it_stands_beside(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    first, last = evaluation(0.31), evaluation(0.905)
    payload = {"value": 0.595, "low": 0.492, "high": 0.698, "n": 200, "gained": 123, "lost": 4}
    write_events(
        run,
        [
            ("evaluation", 0, first, {}),
            step(1),
            ("evaluation", 1, last, {}),
            ("comparison", 1, payload, {}),
        ],
    )
    assert "from 0.310 to 0.905 (+0.595, 95 % interval 0.492 to 0.698," in verdict(read(run))


def test_one_step_is_drawn_as_a_point(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [step(1, 0.25)])
    figure = read(run).one("section", id="reward").one("figure")
    assert figure.one("path", class_="lone").attributes["d"] == "M500.0 225.0h0"
    assert not figure.all("path", class_="line")


def test_a_failed_run_says_why_and_what_to_do(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.set_status("failed", reason="no learning signal in 5 steps", hint="start with easier tasks")
    status = read(run).one("div", class_="status")
    assert [part for part in status.children if not isinstance(part, str)] == status.all()[:3]
    assert [words(part) for part in status.all()[:3]] == [
        "✗ failed",
        "no learning signal in 5 steps",
        "hint: start with easier tasks",
    ]


@pytest.mark.parametrize(("state", "word"), [("interrupted", "‖ interrupted"), ("running", "✗ ")])
def test_a_run_that_stopped_says_how_to_go_on(tmp_path: Path, state: str, word: str) -> None:
    run = make_run(tmp_path)
    run.set_status("interrupted" if state == "interrupted" else "running", hint="an old hint")
    page = read(run)
    assert words(page.one("b", class_="pill")).startswith(word)
    assert words(page.one("span", class_="hint")) == f"hint: headrace resume {run.path}"
    assert page.one("pre", class_="commands").text.startswith(f"headrace resume {run.path}\n")


def test_steps_that_measured_nothing_are_gaps_and_not_zeros(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    silent = {**step_payload(0.5), "reward": None, "kl_reference": None, "gradient_norm": None}
    write_events(run, [step(1), step(2), ("step", 3, silent, {}), step(4), step(5)])
    page = read(run)
    path = page.one("section", id="reward").one("path", class_="line").attributes["d"]
    assert path.count("M") == 2
    assert "Not measured" not in words(page.one("section", id="health"))


def test_what_was_never_measured_is_named_and_not_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("step", 1, {**step_payload(0.5), "kl_reference": None}, step_timing(1))])
    health = read(run).one("section", id="health")
    assert len(health.all("figure")) == 11
    assert "Not measured in this run: Distance to the reference." in words(health)


def test_attempts_that_could_not_be_judged_say_so_with_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("wave", 1, {"wave": "000001:0"}, {}), step(1)])
    with TrajectoryStore(run.trajectories_path) as waves:
        waves.append_wave("000001:0", [trajectory("g", 0, "7", None), trajectory("g", 1, "7", 0.4)])
    sides = read(run).one("section", id="attempts").all("div", class_="side")
    assert words(sides[0]).startswith("? not judged 1 token, cut at the token limit")
    assert words(sides[0]).endswith("the checker did not answer")
    assert words(sides[1]).startswith("◐ partly 0.40")


def test_attempts_that_are_not_in_the_history_are_not_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("wave", 1, {"wave": "000001:0"}, {}), step(1)])
    with TrajectoryStore(run.trajectories_path) as waves:
        waves.append_wave("000001:0", [trajectory("kept", 0, "7", 1.0)])
        waves.append_wave("000002:0", [trajectory("not settled", 0, "7", 1.0)])
    groups = read(run).one("section", id="attempts").all("article")
    assert [words(group.all("b")[0]) for group in groups] == ["group kept"]


# --- size ----------------------------------------------------------------------------------


def test_many_domains_are_folded_and_all_there(tmp_path: Path) -> None:
    page = read(whole_run(tmp_path, steps=30, items=20, domains=112).run)
    domains = page.one("section", id="domains")
    assert "open" not in domains.one("details").attributes
    assert len(domains.one("tbody").all("tr")) == 112
    assert len(domains.all("svg", class_="spark")) == 112
    assert words(domains.one("summary")).startswith("112 domains: median pass rate lately 0.")


def test_many_changes_of_difficulty_do_not_bury_the_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    moves: list[Appended] = [
        ("curriculum", 1 + i % 3, {"domain": f"d{i}", "from_tier": 0, "to_tier": 1}, {})
        for i in range(700)
    ]
    write_events(run, [step(1), step(2), step(3), *moves])
    reward = read(run).one("section", id="reward")
    assert not reward.all("span", class_="flag")
    assert reward.one("path", class_="mark").attributes["d"].count("M") == 3
    assert len(reward.one("tbody").all("tr")) == 500
    assert "The other 200 are in events.jsonl." in words(reward)


def test_of_a_thousand_items_the_rare_outcomes_are_all_embedded(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_events(run, [("evaluation", s, evaluation(0.5, 1000), {}) for s in (0, 1)])
    write_items(run, 0, [item(i, solved=i % 2 == 0) for i in range(1000)])
    write_items(run, 1, [item(i, solved=i % 2 == 1 or i > 20) for i in range(1000)])
    section = read(run).one("section", id="transcripts")
    outcomes = [a.attributes["data-outcome"] for a in section.all("article")]
    assert len(outcomes) == 400
    assert outcomes.count("lost") == 11
    assert "400 of 1,000 tasks are shown" in words(section)
    buttons = [words(b) for b in section.one("div", class_="filters").all("button")]
    assert buttons == ["all 400", "newly solved 195 of 500", "lost 11", "still right 194 of 489"]


def test_two_thousand_steps_and_long_texts_stay_small_and_quick(tmp_path: Path) -> None:
    run = whole_run(tmp_path, steps=2000, items=400, domains=20).run
    for number in (0, 2000):
        long = {"completion": "because <b> & " * 600, "prompt": "word " * 500}
        write_items(run, number, [item(i, solved=i % 2 == 0) | long for i in range(400)])
    started = time.process_time()
    path = write_report(run.path)
    assert time.process_time() - started < 3.0
    assert path.stat().st_size < 3_000_000
    page = parse(path.read_text(encoding="utf-8"))
    assert len(json.loads(page.one("main").attributes["data-steps"])) <= 1001
    assert "Each point stands for 3 steps" in words(page.one("section", id="reward"))


def test_a_single_spike_of_the_gradient_survives_two_thousand_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    spiked = step_payload(0.5) | {"gradient_norm": 97.5}
    write_events(
        run,
        [("step", i, spiked if i == 1234 else step_payload(0.5), {}) for i in range(1, 2001)],
    )
    figures = read(run).one("section", id="health").all("figure")
    norm = next(f for f in figures if f.text.startswith("Gradient norm")).all("li")[0]
    assert max(json.loads(norm.attributes["data-values"])[0]) == 97.5


# --- damage --------------------------------------------------------------------------------


def _write(name: str, text: str) -> Callable[[RunDirectory], None]:
    def damage(run: RunDirectory) -> None:
        (run.path / name).write_text(text)

    return damage


def _garble_waves(run: RunDirectory) -> None:
    path = run.trajectories_path / "part-00000.seg"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_write("recipe.json", "{"), "The recipe could not be read"),
        (_write("env.json", "nonsense"), "The environment could not be read"),
        (_write("status.json", "[]"), "The status could not be read"),
        (_write("events.jsonl", "broken\n{}\n"), "The event log could not be read: line 1"),
        (_write("evals/heldout/step_000000.json", "{"), "step_000000.json could not be read"),
        (_write("evals/heldout/step_000022.json", '{"items": 3}'), "does not hold a list of items"),
        (_garble_waves, "The attempts could not be read"),
    ],
)
def test_a_damaged_file_is_said_and_the_rest_is_shown(
    tmp_path: Path, damage: Callable[[RunDirectory], None], said: str
) -> None:
    run = whole_run(tmp_path, items=5).run
    damage(run)
    page = read(run)
    assert said in problems(page)
    assert page.one("section", id="details").all("table")
    if "events" not in said and "event" not in said:
        assert len(page.all("figure")) == 16


def test_a_missing_evaluation_file_and_a_torn_last_line_are_no_trouble(tmp_path: Path) -> None:
    run = whole_run(tmp_path, items=5).run
    (run.evals_path / "heldout" / "step_000022.json").unlink()
    with run.events_path.open("a") as file:
        file.write('{"seq": 99, "ki')
    page = read(run)
    assert "step_000022.json" in problems(page)
    assert "went from 0.34 to 0.94" in verdict(page)


@pytest.mark.parametrize("recipe", ["[]", "3", '{"steps": "many", "model": {"source": 7}}'])
def test_a_recipe_of_another_shape_is_shown_as_it_is(tmp_path: Path, recipe: str) -> None:
    run = make_run(tmp_path)
    (run.path / "recipe.json").write_text(recipe)
    assert words(read(run).one("h1")) == f"{run.name} on unknown model"


def test_values_of_another_kind_are_not_measured_and_never_zero(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    odd = {"reward": {"mean": "high"}, "length": [], "entropy": True, "domains": {"d": 3}}
    write_events(run, [("step", 1, odd, {}), ("evaluation", 0, {"suite": "heldout"}, {})])
    page = read(run)
    assert "Held-out score before training: –" in verdict(page)
    assert "no attempt could be judged" in verdict(page)
    assert not page.one("section", id="health").all("figure")


_KEYS = """
    suite heldout reward mean stderr p10 p90 solved length p95 truncated entropy credit groups
    with_spread unscored kl_reference ratio_max gradient_norm domains d tier tiers share
    pass_rate scored attempts score low high n by_domain value gained lost confidence domain
    from_tier to_tier wave
"""
_WORDS = st.sampled_from(_KEYS.split())
_ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=6),
    max_leaves=12,
)
_EVENT = st.tuples(
    st.sampled_from(["step", "evaluation", "comparison", "curriculum", "wave", "run_finished"]),
    st.integers(0, 5) | st.integers(-(10**20), 10**20),
    st.dictionaries(_WORDS, _ODD, max_size=8),
    st.dictionaries(
        st.sampled_from(["play", "learn", "since_ready", "seconds", "tokens_per_second"]),
        st.floats(allow_nan=False) | st.integers(-(10**400), 10**400),
    ),
)
_ITEM = st.dictionaries(st.sampled_from(sorted(item(1, solved=True))), _ODD)


@settings(max_examples=60, deadline=None)
@given(events=st.lists(_EVENT, max_size=12), items=st.lists(_ODD | _ITEM, max_size=4), suite=_ODD)
def test_no_event_or_evaluation_stops_the_page(
    events: list[tuple[str, int, dict[str, Json], dict[str, float]]],
    items: list[Json],
    suite: Json,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = make_run(Path(root))
        suited = [(k, at, {"suite": "heldout", **said}, times) for k, at, said, times in events]
        write_events(run, suited)
        folder = run.evals_path / "heldout"
        folder.mkdir()
        (folder / "step_000000.json").write_text(json.dumps({"items": items}))
        (folder / "step_000001.json").write_text(json.dumps(suite))
        page = read(run)
    assert "The event log" not in problems(page)
    assert len(page.all("section")) == 8


def test_timings_beyond_any_clock_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    times = {"seconds": 10**400, "tokens_per_second": 0.5, "since_ready": 10**400}
    write_events(run, [("step", 1, step_payload(0.5), times)])
    terms = [words(term) for term in read(run).all("dt")]
    assert terms == ["Steps", "Started", "Machine"]


def test_rates_beyond_a_share_do_not_reach_the_table(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    wild = {**domain_state(0.5), "pass_rate": 7.5, "share": -1, "attempts": -3.5}
    write_events(run, [("step", 1, step_payload(0.5, domains={"d": wild}), {})])
    row = read(run).one("section", id="domains").one("tbody").one("tr")
    assert [words(cell) for cell in row.all("td")][1:5] == ["–", "0.50", "–", "0"]
