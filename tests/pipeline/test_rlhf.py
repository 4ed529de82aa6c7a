"""RLHF: a critic beside the policy, and rewards that are more than a verifier's word."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.configure import ResolvedPlan, load
from headrace.errors import Interrupted, ModelError, RecipeError
from headrace.observe.listener import QuietListener, StepLine
from headrace.pipeline.plans import resume_plan, start_plan
from headrace.pipeline.rewarding import Rater, Rewards
from headrace.pipeline.session import resume, start
from headrace.pipeline.supply import Wave
from headrace.policy.scalar import open_scalar
from headrace.recipe import ObjectiveSpec, Plan
from headrace.store.events import Event, read_events
from headrace.store.records import Judged
from headrace.store.runs import RunDirectory
from headrace.store.trajectories import TrajectoryStore
from headrace.types import Failure, Json, Sample, Trajectory, VerdictPart
from headrace.verify.judge import Logistic
from pipeline_support import PACKS, events, recipe, run
from trajectories_support import attempt, verdict

PPO: dict[str, Json] = {
    "algorithm": {
        "preset": "ppo",
        "critic": {"learning_rate": 1e-2},
        "kl": {"place": "reward", "estimator": "k1"},
        "updates": 2,
    },
    "play": {"groups": 8, "group_size": 1, "max_new_tokens": 6},
    "evaluate": {"items": 0},
    "checkpoint": {"every": 1},
    "verify": {"audit": "off", "honeypot_every": None},
}


class Stop(QuietListener):
    """Ends a run of three steps in its second, before that one's checkpoint."""

    def step(self, line: StepLine) -> None:
        if (line.step, line.steps) == (2, 3):
            raise Interrupted("enough", where="here")


def digests(checkpoint: Path) -> dict[str, str]:
    """The content of every file of a checkpoint with weights or moments."""
    return {
        path.relative_to(checkpoint).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(checkpoint.rglob("*.safetensors"))
    }


def steps(run: Path) -> list[Event]:
    return [event for event in read_events(run / "events.jsonl") if event.kind == "step"]


def told(run: Path) -> list[tuple[int, Json]]:
    return [(event.step, event.payload) for event in steps(run)]


# --- the critic ----------------------------------------------------------------------------


def test_a_critic_learns_what_attempts_are_worth_where_each_task_is_played_once(
    tmp_path: Path,
) -> None:
    run(tmp_path, **{**PPO, "checkpoint": {"every": 6}}, steps=6)
    seen = [event.payload for event in events(tmp_path, "step")]
    assert seen[-1]["critic"]["loss"] < seen[0]["critic"]["loss"] / 2
    assert seen[-1]["critic"]["explained"] > seen[0]["critic"]["explained"]
    assert [s["critic"]["tokens"] for s in seen] == [s["trained_tokens"] for s in seen]
    assert {s["critic"]["learning_rate"] for s in seen} == {1e-2}


def test_policy_and_critic_of_a_resumed_run_have_the_bits_of_one_that_was_not_stopped(
    tmp_path: Path,
) -> None:
    told_of = recipe(**PPO, steps=3)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    start(told_of, runs=tmp_path, directory=whole, listener=QuietListener(), packs=PACKS)
    with pytest.raises(Interrupted):
        start(told_of, runs=tmp_path, directory=cut, listener=Stop(), packs=PACKS)
    resume(cut, listener=QuietListener(), packs=PACKS)
    kept = digests(whole / "checkpoints/step_000003")
    assert "critic/optimizer.safetensors" in kept
    assert digests(cut / "checkpoints/step_000003") == kept
    assert told(cut) == told(whole)


# --- a plan: a reward model, then RLHF against a fusion ------------------------------------

PLAN = """
steps = 2
threads = 1
model = { source = "tiny:llama" }
verify = { audit = "off", honeypot_every = "none" }
evaluate = { items = 2 }
tasks = { domains = [{ name = "vowels" }], curriculum = { enabled = false } }
play = { groups = 4, group_size = 4, max_new_tokens = 16, stop_strings = ["a", "e", "i"] }
stop = { no_signal = 1000, all_truncated = 1000 }
checkpoint = { every = 1 }
learner = { learning_rate = 1e-3 }

[[stages]]
name = "sample"
method = "play"
steps = 4

[[stages]]
name = "judge"
method = "reward"
data = { sources = [{ run = "stage:sample" }], batch = 4, validation = 0.3 }

[[stages]]
name = "align"
steps = 3
algorithm = { preset = "ppo", critic = { start = "stage:judge" } }
rewards = [
  { name = "helpful", kind = "reward_model", source = "stage:judge", weight = 2.0 },
  { name = "vowels", kind = "verifier" },
  { name = "short", kind = "length", target = 4, cost = 0.05, weight = 0.5 },
]
"""


def plan_of(folder: Path, *overrides: str) -> Plan:
    path = folder / "plan.toml"
    path.write_text(PLAN)
    resolved = load(str(path), overrides)
    assert isinstance(resolved, ResolvedPlan)
    return resolved.plan


def test_a_policy_is_trained_on_the_fusion_of_a_reward_model_a_verifier_and_its_length(
    tmp_path: Path,
) -> None:
    """Stopped on the way, it sees the same rewards and ends with the same bits."""
    plan = plan_of(tmp_path)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with pytest.raises(Interrupted):
        start_plan(plan, runs=tmp_path, directory=cut, listener=Stop(), packs=PACKS)
    shutil.copytree(cut, whole, symlinks=True)
    shutil.rmtree(whole / "stages/align")
    for folder in (cut, whole):
        resume_plan(RunDirectory.open(folder), plan, listener=QuietListener(), packs=PACKS)

    spread = open_scalar(whole / "stages/judge/artifact/model").training["calibration"]
    assert spread["n"] > 1
    assert spread["scale"] > 0

    aligned = whole / "stages/align"
    last = steps(aligned)[-1].payload
    weights = {"helpful": 2.0, "vowels": 1.0, "short": 0.5}
    means = {name: last["objectives"][name]["mean"] for name in weights}
    fused = sum(weights[name] * mean for name, mean in means.items()) / sum(weights.values())
    assert last["reward"]["mean"] == pytest.approx(fused)
    assert last["domains"]["vowels"]["pass_rate"] is not None
    evaluated = [e for e in read_events(aligned / "events.jsonl") if e.kind == "evaluation"]
    assert all(e.payload["objectives"].keys() == weights.keys() for e in evaluated)
    assert all(
        e.payload["objectives"]["vowels"]["mean"] == pytest.approx(e.payload["score"])
        for e in evaluated
    ), "what is evaluated is the verifier's own score"
    with TrajectoryStore(aligned / "trajectories", read_only=True) as store:
        played = next(store.trajectories())
        assert played.verdict is not None
        assert played.verdict.verifier.id == "share-of-vowels"
        assert [v.verifier.id for v in store.verdicts(played.id)] == ["share-of-vowels", "rewards"]

    other = cut / "stages/align"
    assert told(other) == told(aligned)
    kept = digests(aligned / "checkpoints/step_000003")
    assert digests(other / "checkpoints/step_000003") == kept


@pytest.mark.parametrize("key", ["rewards.0.source", "algorithm.critic.start"])
def test_a_stage_that_rewards_or_expects_comes_before(tmp_path: Path, key: str) -> None:
    with pytest.raises(RecipeError, match="starts from later, which is no stage before it"):
        plan_of(tmp_path, f"stages.align.{key}=stage:later")


def test_a_reward_model_without_a_scale_is_refused_before_anything_runs(tmp_path: Path) -> None:
    from headrace.policy.engine import TorchPolicy
    from headrace.policy.load import load as load_model
    from headrace.policy.scalar import ScalarModel
    from headrace.recipe import LearnerSpec, ModelSpec

    policy = TorchPolicy(load_model("tiny:llama"), ModelSpec())
    place = tmp_path / "judge"
    ScalarModel(policy, LearnerSpec(), kind="reward").export(place)
    rewards = [{"name": "helpful", "kind": "reward_model", "source": str(place)}]
    with pytest.raises(ModelError, match="trained without validation data") as caught:
        run(tmp_path, **PPO, rewards=rewards)
    assert caught.value.hint == "set mean and scale of the objective helpful"
    assert not (tmp_path / "run").exists()


# --- rewards -------------------------------------------------------------------------------

HELPFUL = ObjectiveSpec(name="helpful", kind="reward_model", source="somewhere", weight=3.0)
RIGHT = ObjectiveSpec(name="right", kind="verifier")
SHORT = ObjectiveSpec(name="short", kind="length", target=3, cost=0.25, weight=0.0)


@dataclass
class Company:
    """A reward model whose scores depend on who is scored together, as rounding does."""

    asked: list[list[str]] = field(default_factory=list[list[str]])
    says: float | None = None

    def scores(self, samples: Sequence[Sample]) -> list[float]:
        self.asked.append([sample.trajectory for sample in samples])
        return [len(samples) + n if self.says is None else self.says for n in range(len(samples))]


def rewards(
    store: TrajectoryStore, model: Company, *objectives: ObjectiveSpec, middle: float = 2.0
) -> Rewards:
    raters = {"helpful": Rater(model=model, mapping=Logistic(middle=middle), digest="abc")}
    return Rewards(objectives or (HELPFUL, RIGHT, SHORT), raters, store)


def stored(store: TrajectoryStore, *scores: float | None, tokens: int = 3) -> Wave:
    """A group that was played and judged, as it comes out of the store."""
    group = [attempt("g", n, tokens=tokens) for n in range(len(scores))]
    store.append_wave("g", group)
    for played, score in zip(group, scores, strict=True):
        store.append(Judged(played.id, verdict(score)))
    return read_again(store)


def read_again(store: TrajectoryStore) -> Wave:
    group = tuple(store.wave("g") or ())
    return Wave(key="k", replayed=0, groups=(group,), effective=(group,))


def parts(attempts: Sequence[Trajectory]) -> list[dict[str, float]]:
    said = [told.verdict.parts if told.verdict else () for told in attempts]
    return [{part.name: part.value for part in found} for found in said]


def test_a_reward_is_the_weighted_mean_of_its_objectives_calculated_by_hand(tmp_path: Path) -> None:
    """Scores 2 and 3 around 2: logistic 1/2 and 1/(1 + e^-1). Five tokens are two too many."""
    with TrajectoryStore(tmp_path) as store:
        found = rewards(store, Company()).of(stored(store, 1.0, 0.0, tokens=5))
    second = 1 / (1 + math.exp(-1))
    assert [told.score for told in found.trained] == pytest.approx(
        [(3 * 0.5 + 1.0) / 4, 3 * second / 4]
    )
    assert parts(found.trained) == [
        {"helpful": 0.5, "right": 1.0, "short": 0.5},
        {"helpful": pytest.approx(second), "right": 0.0, "short": 0.5},
    ]
    assert [told.score for told in found.attempts] == [1.0, 0.0], "verdicts stay what they are"


def test_rewards_are_on_disk_before_they_are_used_and_are_not_made_twice(tmp_path: Path) -> None:
    first, later = Company(), Company()
    with TrajectoryStore(tmp_path) as store:
        before = rewards(store, first).of(stored(store, 1.0, 0.5))
    with TrajectoryStore(tmp_path) as store:
        after = rewards(store, later).of(read_again(store))
    assert [t.verdict for t in after.trained] == [t.verdict for t in before.trained]
    assert (first.asked, later.asked) == ([["g/0", "g/1"]], [])


def test_a_group_of_which_only_a_part_was_kept_is_scored_in_the_same_company(
    tmp_path: Path,
) -> None:
    with TrajectoryStore(tmp_path / "whole") as store:
        whole = rewards(store, Company()).of(stored(store, 1.0, 0.5))
    first = whole.trained[0]
    assert first.verdict is not None
    model = Company()
    with TrajectoryStore(tmp_path / "cut") as store:
        wave = stored(store, 1.0, 0.5)
        store.append(Judged(first.id, first.verdict))
        again = rewards(store, model).of(wave)
    assert [t.verdict for t in again.trained] == [t.verdict for t in whole.trained]
    assert model.asked == [["g/0", "g/1"]]


def test_other_objectives_or_another_scale_are_other_rewards(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        made = [
            rewards(store, Company()),
            rewards(store, Company(), middle=1.0),
            rewards(store, Company(), HELPFUL, RIGHT),
        ]
    assert len({found.ref for found in made}) == 3


def test_what_one_objective_cannot_judge_has_no_reward_and_is_never_zero(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        found = rewards(store, Company()).of(stored(store, None, 0.0))
    unjudged, judged = (told.verdict for told in found.trained)
    assert unjudged is not None
    assert (unjudged.score, unjudged.fault) == (None, "infrastructure")
    assert "right could not be judged" in unjudged.evidence
    assert [part.name for part in unjudged.parts] == ["helpful", "short"]
    assert judged is not None
    assert judged.score is not None


def test_a_score_that_is_no_number_is_the_fault_of_the_reward_model(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        (told,) = rewards(store, Company(says=math.nan)).of(stored(store, 1.0)).trained
    assert told.verdict is not None
    assert (told.verdict.score, told.verdict.fault) == (None, "verifier")


def test_an_attempt_that_the_machine_broke_is_judged_by_nobody(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        broken = Failure("sandbox", "gone", "infrastructure")
        told = attempt("g").judged(verdict(1.0))
        (found,) = rewards(store, Company()).judge([replace(told, failure=broken)])
    assert found.verdict is not None
    assert (found.verdict.score, found.verdict.fault) == (None, "infrastructure")


def test_rewards_do_not_take_the_place_of_a_verdict_that_has_no_score(tmp_path: Path) -> None:
    """A store reads an attempt with its first score, which after a kill may be the reward."""
    unpaid = RIGHT.model_copy(update={"weight": 0.0})
    with TrajectoryStore(tmp_path) as store:
        made = rewards(store, Company(), HELPFUL, unpaid)
        before = made.of(stored(store, None))
        again = read_again(store)
        assert again.attempts[0].score is not None
        after = made.of(again)
    assert [t.verdict for t in after.attempts] == [t.verdict for t in before.attempts]
    assert after.attempts[0].score is None
    assert after.trained[0].verdict == before.trained[0].verdict
    assert before.trained[0].verdict is not None
    assert before.trained[0].verdict.parts == (VerdictPart("helpful", 1 / (1 + math.e), 3.0),)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "a", "kind": "reward_model"}, "needs a source"),
        ({"name": "a", "kind": "reward_model", "source": "x", "mean": 0.0}, "belong together"),
        ({"name": "a", "kind": "verifier", "source": "x"}, "means nothing"),
        ({"name": "a", "kind": "length", "target": 5}, "a target and a cost"),
        ({"name": "A b", "kind": "verifier"}, "pattern"),
    ],
)
def test_an_objective_that_says_too_little_or_too_much_is_refused(
    values: dict[str, Json], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        ObjectiveSpec.model_validate(values)


def test_rewards_that_cannot_be_are_refused_with_the_reason() -> None:
    right: Json = {"name": "right", "kind": "verifier"}
    with pytest.raises(ValidationError, match="the same name"):
        recipe(rewards=[right, right])
    with pytest.raises(ValidationError, match="no objective in rewards has a weight"):
        recipe(rewards=[{**right, "weight": 0.0}])
    with pytest.raises(ValidationError, match="dynamic sampling"):
        recipe(rewards=[right], algorithm={"preset": "dapo"})
