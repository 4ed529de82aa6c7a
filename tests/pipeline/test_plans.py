"""Plans: stages one after the other, each starting from what another left."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace.configure import ResolvedPlan, load
from headrace.data.packs import Catalogue
from headrace.errors import Interrupted, NoSignalError, RecipeError, UsageError
from headrace.observe.listener import QuietListener, StepLine
from headrace.pipeline.material import read_material
from headrace.pipeline.plans import resume_plan, start_plan
from headrace.pipeline.prepare import renderer_of
from headrace.pipeline.session import RunResult
from headrace.pipeline.study import is_pair
from headrace.policy.load import load as load_model
from headrace.recipe import Plan, Recipe
from headrace.store.events import Event, read_events
from headrace.store.models import read_card
from headrace.store.runs import RunDirectory
from headrace.types import Example, Json
from pipeline_support import PACKS

COMMON = """
description = "small"
steps = 2
model = { source = "tiny:llama" }
verify = { audit = "off", honeypot_every = "none" }
evaluate = { items = 4 }
tasks = { domains = [{ name = "vowels" }], curriculum = { enabled = false } }
play = { groups = 4, group_size = 4, max_new_tokens = 24, stop_strings = ["a", "e", "i"] }
checkpoint = { every = 1 }
learner = { learning_rate = 1e-3 }
"""

PLAY = """
[[stages]]
name = "sample"
method = "play"
"""


def plan_of(folder: Path, stages: str, *overrides: str) -> Plan:
    path = folder / "plan.toml"
    path.write_text(COMMON + stages)
    resolved = load(str(path), overrides)
    assert isinstance(resolved, ResolvedPlan)
    return resolved.plan


def run(folder: Path, stages: str, *overrides: str) -> RunResult:
    return start_plan(
        plan_of(folder, stages, *overrides),
        runs=folder,
        directory=folder / "run",
        listener=QuietListener(),
        packs=PACKS,
    )


def steps(folder: Path, stage: str) -> list[Event]:
    path = folder / "run" / "stages" / stage / "events.jsonl"
    return [event for event in read_events(path) if event.kind == "step"]


def validations(folder: Path, stage: str) -> list[Event]:
    path = folder / "run" / "stages" / stage / "events.jsonl"
    seen = [event for event in read_events(path) if event.kind == "evaluation"]
    return [event for event in seen if event.payload["suite"] == "validation"]


def test_a_stage_that_plays_learns_nothing_and_the_next_imitates_what_scored_well(
    tmp_path: Path,
) -> None:
    run(
        tmp_path,
        PLAY
        + """
[[stages]]
name = "imitate"
method = "sft"
steps = 2
model.source = "stage:sample"
data = { sources = [{ run = "stage:sample", min_score = 0.01 }], batch = 4, validation = 0.2 }
""",
        "stages.sample.steps=3",
    )
    base, played = (
        read_card(tmp_path / "run/stages" / s / "artifact") for s in ("sample", "imitate")
    )
    assert [event.payload["version"] for event in steps(tmp_path, "sample")] == [0, 0, 0]
    assert played.parents[0].artifact == base.id
    assert played.method == "sft"
    assert played.data[0].source == "stage:sample"
    assert played.data[0].units > 4
    assert steps(tmp_path, "imitate")[-1].payload["trained_tokens"] > 0


PAIRS = """
data = { sources = [{ run = "stage:sample" }], batch = 4, validation = 0.2 }
"""


LOSSES = dict.fromkeys(("dpo", "ipo", "kto", "simpo"), "") | {"orpo": "preference.sft_weight = 1.0"}


@pytest.mark.parametrize("loss", LOSSES)
def test_pairs_of_what_was_played_move_the_policy_towards_the_better(
    tmp_path: Path, loss: str
) -> None:
    run(
        tmp_path,
        PLAY
        + f"""
[[stages]]
name = "prefer"
method = "preference"
steps = 3
preference.loss = "{loss}"
{LOSSES[loss]}
{PAIRS}
""",
    )
    seen = steps(tmp_path, "prefer")
    assert len(seen) == 3
    assert seen[-1].payload["version"] == 3
    assert all(0 <= event.payload["accuracy"] <= 1 for event in seen)
    assert read_card(tmp_path / "run/stages/prefer/artifact").kind == "policy"


def test_a_reward_model_learns_to_order_pairs_it_has_not_seen(tmp_path: Path) -> None:
    run(
        tmp_path,
        PLAY
        + f"""
[[stages]]
name = "judge"
method = "reward"
steps = 12
{PAIRS}
""",
        "stages.sample.steps=6",
    )
    before, after = (e.payload for e in (validations(tmp_path, "judge")[i] for i in (0, -1)))
    assert after["loss"] < before["loss"]
    assert set(after["length_bias"]) == {"pearson", "spearman", "slope", "partial"}
    assert read_card(tmp_path / "run/stages/judge/artifact").kind == "reward"


def test_a_student_comes_nearer_to_its_teacher(tmp_path: Path) -> None:
    talks = [[f"say {n}", "aeiou" * (n % 3 + 1)] for n in range(40)]
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in talks
    ]
    data = tmp_path / "talks.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(
        tmp_path,
        f"""
[[stages]]
name = "teach"
method = "sft"
steps = 8
data = {{ sources = [{{ path = "{data}" }}], batch = 8, validation = 0.2 }}

[[stages]]
name = "distil"
method = "distill"
steps = 4
distill.teacher = "stage:teach"
""",
    )
    losses = [event.payload["loss"] for event in validations(tmp_path, "teach")]
    assert losses[-1] < losses[0]
    plan = read_events(tmp_path / "run" / "events.jsonl")
    assert [event.kind for event in plan] == ["evaluation", "evaluation", "comparison"]
    first = read_events(tmp_path / "run/stages/teach/events.jsonl")
    last = read_events(tmp_path / "run/stages/distil/events.jsonl")
    whole = [
        e.payload["score"]
        for log in (first, last)
        for e in log
        if e.payload.get("suite") == "heldout" and e.kind == "evaluation"
    ]
    assert [e.payload["score"] for e in plan[:2]] == [whole[0], whole[-1]]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "stages/distil/report.html" in page
    advantages = [e.payload["credit"]["advantage"]["mean"] for e in steps(tmp_path, "distil")]
    assert advantages[0] < 0, "minus the reverse KL to the teacher"
    assert advantages[-1] > advantages[0]


class Stop(QuietListener):
    """Ends everything in the second step of a stage on recorded data."""

    def step(self, line: StepLine) -> None:
        if line.loss is not None and line.step == 2:
            raise Interrupted("enough", where="here")


def test_a_plan_goes_on_where_it_was_stopped_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    told = (
        PLAY
        + f"""
[[stages]]
name = "prefer"
method = "preference"
steps = 4
{PAIRS}
"""
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    run(whole, told)
    with pytest.raises(Interrupted):
        start_plan(
            plan_of(cut, told),
            runs=cut,
            directory=cut / "run",
            listener=Stop(),
            packs=PACKS,
        )
    directory = RunDirectory.open(cut / "run")
    assert directory.status().state == "interrupted"
    plan = plan_of(cut, told)
    resume_plan(directory, plan, listener=QuietListener(), packs=PACKS)
    assert directory.status().state == "done"
    ids = [read_card(f / "run/stages/prefer/artifact").files for f in (whole, cut)]
    assert [f.sha256 for f in ids[0] if f.name.endswith(".safetensors")] == [
        f.sha256 for f in ids[1] if f.name.endswith(".safetensors")
    ]


def test_a_plan_stops_where_a_stage_does_not_confirm_the_signal(tmp_path: Path) -> None:
    told = PLAY.replace("method", "confirm = true\nmethod") + PLAY.replace("sample", "again")
    with pytest.raises(NoSignalError, match="stage sample does not confirm the signal"):
        run(tmp_path, told)
    assert RunDirectory.open(tmp_path / "run").status().state == "failed"
    assert not (tmp_path / "run/stages/again").exists()


def test_what_is_wrong_with_a_plan_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="starts from later, which is no stage before it"):
        plan_of(tmp_path, '[[stages]]\nname = "a"\nmodel.source = "stage:later"\n')
    with pytest.raises(RecipeError, match="there is no stage b"):
        plan_of(tmp_path, PLAY, "stages.b.steps=3")
    with pytest.raises(RecipeError, match="learns from recorded data"):
        plan_of(tmp_path, '[[stages]]\nname = "a"\nmethod = "sft"\n')


def test_reference_answers_come_from_the_tiers_that_are_named() -> None:
    told: Json = {
        "method": "sft",
        "data": {"sources": [{"domain": "arithmetic", "items": 12, "tiers": [0, 2]}]},
    }
    recipe = Recipe.model_validate(told)
    loaded = load_model("tiny:llama")
    with Catalogue() as catalogue:
        read = partial(
            read_material,
            catalogue=catalogue,
            renderer=renderer_of(loaded),
            listener=QuietListener(),
            beside=None,
        )
        units = read(recipe).sources["arithmetic"].units
        assert {unit[0].lineage["tier"] for unit in units} == {0, 2}
        told["data"]["sources"][0]["tiers"] = [99]
        with pytest.raises(UsageError, match="has the tiers 0 to 9, not 99"):
            read(Recipe.model_validate(told))


def test_a_conversation_in_two_parts_is_no_pair() -> None:
    nothing = np.zeros(2, np.int32)
    part = Example(key="a", group="g", source="s", ids=nothing, trainable=nothing > 0)
    assert not is_pair((part, replace(part, key="b")))
    assert is_pair((replace(part, label=1.0), replace(part, key="b", label=-1.0)))
    assert not is_pair((replace(part, label=1.0),))
