from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from headrace.evaluate.heldout import Evaluation, Item
from headrace.evaluate.perplexity import TextLoss, paired_loss
from headrace.evaluate.regression import (
    Action,
    Mark,
    Watchdog,
    Watched,
    WatchedSuite,
    marks_of_evaluation,
    marks_of_losses,
)
from headrace.evaluate.statistics import paired_difference

CHAT = WatchedSuite(name="chat", margin=0.05)
TEXT = WatchedSuite(name="text", margin=0.1, better="lower", scale="nats")


def scored(*values: float | None) -> list[Mark]:
    return [Mark(key=str(i), value=value) for i, value in enumerate(values)]


def shares(solved: int, n: int = 200) -> list[Mark]:
    return scored(*([1.0] * solved + [0.0] * (n - solved)))


def texts(*per_token: float, tokens: int = 50) -> list[Mark]:
    return [
        Mark(key=str(i), value=value * tokens, tokens=tokens) for i, value in enumerate(per_token)
    ]


def watch(*suites: WatchedSuite, looks: int = 1, level: float = 0.05) -> Watchdog:
    return Watchdog(suites or (CHAT,), looks=looks, level=level)


def look(
    dog: Watchdog,
    step: int,
    marks: Sequence[Mark],
    *,
    target: float | None = None,
    checkpoint: bool = False,
) -> Watched:
    return dog.observe(step, {CHAT.name: marks}, target=target, checkpoint=checkpoint)


# --- verdicts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        # of 200 items 160 were solved; of those so many are still, and no other
        (160, "held"),  # no change at all: within 1.8 points
        (158, "held"),  # 1 point worse, at most 2.4
        (150, "inconclusive"),  # 5 points worse: the margin itself
        (140, "inconclusive"),  # 10 points; at least 5.8 at 95 %, 3.3 at the share of a look
        (130, "fell"),  # 15 points, at least 7.1 at the share of a look
    ],
)
def test_verdicts_by_hand(after: int, verdict: str) -> None:
    dog = watch(looks=50)
    dog.set_base({"chat": shares(160)})
    (found,) = look(dog, 1, shares(after)).findings
    assert found.verdict == verdict


def test_a_finding_says_what_the_statistics_say() -> None:
    dog = watch(looks=10)
    before, after = shares(160), shares(140)
    dog.set_base({"chat": before})
    (found,) = look(dog, 7, after).findings
    values = [m.value for m in before], [m.value for m in after]
    shown = paired_difference(*values, 0.95)
    assert (found.difference.value, found.difference.n) == (pytest.approx(-0.1), 200)
    assert (found.difference.low, found.difference.high) == (shown.low, shown.high)
    # one look of ten spends 0.005 on one side
    stderr = stats.sem([(a or 0) - (b or 0) for b, a in zip(*values, strict=True)])
    bound = -0.1 + float(stats.t.ppf(0.995, 199)) * stderr
    assert found.least_fall == pytest.approx(-bound)
    assert (found.before.value, found.after.value) == (0.8, 0.7)
    assert (found.step, found.unscored) == (7, 0)
    assert found.sentence() == (
        f"chat {found.verdict}: 0.800 -> 0.700, difference -0.100 "
        f"[{shown.low:+.3f}, {shown.high:+.3f}], margin 0.05"
    )


def test_of_nats_less_is_better() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(3, 0.3, 40).tolist()
    noise = rng.normal(0, 0.02, 40)
    dog = Watchdog([TEXT], looks=1)
    dog.set_base({"text": texts(*base)})
    noise -= noise.mean()
    changes = {"fell": 0.3, "held": -0.5, "inconclusive": 0.1}
    for step, (verdict, change) in enumerate(changes.items(), start=1):
        after = texts(*(float(b + change + e) for b, e in zip(base, noise, strict=True)))
        (found,) = dog.observe(step, {"text": after}).findings
        assert found.verdict == verdict
        oracle = paired_loss(as_losses(texts(*base)), as_losses(after))
        assert (found.difference.low, found.difference.high) == (oracle.low, oracle.high)
        assert found.difference.value == pytest.approx(change, abs=0.02)
        assert "nats per token" in found.sentence()


def as_losses(marks: Sequence[Mark]) -> list[TextLoss]:
    return [TextLoss(key=m.key, nats=m.value or 0.0, tokens=m.tokens) for m in marks]


def test_a_share_may_be_better_low_too() -> None:
    refusals = WatchedSuite(name="chat", margin=0.05, better="lower")
    dog = watch(refusals)
    dog.set_base({"chat": shares(20)})
    assert look(dog, 1, shares(80)).findings[0].verdict == "fell"
    assert look(dog, 2, shares(0)).findings[0].verdict == "held"


def test_phrasings_of_one_problem_are_not_independent() -> None:
    def marks(solved: Sequence[float]) -> list[Mark]:
        return [
            Mark(key=f"{i}.{k}", value=value, cluster=f"p{i}")
            for i, value in enumerate(solved)
            for k in range(20)
        ]

    before, after = [1.0] * 10, [1.0] * 7 + [0.0] * 3
    verdicts: list[str] = []
    for clustered in (True, False):
        dog = watch()
        base, now = marks(before), marks(after)
        if not clustered:
            base, now = (scored(*(m.value for m in found)) for found in (base, now))
        dog.set_base({"chat": base})
        verdicts.append(look(dog, 1, now).findings[0].verdict)
    assert verdicts == ["inconclusive", "fell"]


def test_items_that_could_not_be_judged_are_left_out_and_counted() -> None:
    dog = watch()
    dog.set_base({"chat": scored(1.0, 1.0, None, 0.0)})
    (found,) = look(dog, 1, scored(1.0, None, 1.0, 0.0)).findings
    assert (found.unscored, found.difference.n) == (2, 2)


def test_a_finding_goes_into_cards_and_events() -> None:
    dog = watch()
    dog.set_base({"chat": shares(160)})
    (found,) = look(dog, 1, shares(100)).findings
    score = found.score()
    assert (score.suite, score.verdict, score.margin) == ("chat", "fell", 0.05)
    assert score.after is not None
    assert score.after.value == 0.5
    assert json.loads(json.dumps(found.payload()))["verdict"] == "fell"


# --- what to do ----------------------------------------------------------------------------


def guard(action: Action) -> Watchdog:
    dog = watch(WatchedSuite(name="chat", margin=0.05, action=action), looks=10)
    dog.set_base({"chat": shares(160)})
    return dog


def test_an_alert_is_raised_once_until_the_suite_has_recovered() -> None:
    dog = guard("alert")
    falls = [160, 100, 90, 160, 100]
    actions = [look(dog, step, shares(solved)).action for step, solved in enumerate(falls)]
    assert actions == [None, "alert", None, None, "alert"]


def test_a_stop_is_asked_for_as_long_as_the_suite_is_down() -> None:
    dog = guard("stop")
    assert [look(dog, step, shares(n)).action for step, n in enumerate([160, 100, 100])] == [
        None,
        "stop",
        "stop",
    ]


def test_a_rollback_goes_to_the_best_checkpoint_before_the_fall() -> None:
    dog = guard("rollback")
    for step, target, checkpoint in [
        (5, 0.3, True),
        (10, 0.6, True),
        (15, 0.9, False),
        (20, 0.5, True),
    ]:
        assert look(dog, step, shares(158), target=target, checkpoint=checkpoint).action is None
    assert dog.best == 10
    done = look(dog, 25, shares(100), target=0.99, checkpoint=True)
    assert (done.action, done.back_to) == ("rollback", 10)
    assert [finding.suite.name for finding in done.fallen] == ["chat"]
    assert dog.best == 10, "the fallen one is never the best"


def test_of_equals_or_without_targets_the_latest_is_best() -> None:
    dog = guard("rollback")
    for step in (5, 10):
        look(dog, step, shares(160), checkpoint=True)
    assert dog.best == 10
    dog = guard("rollback")
    for step, target in [(5, 0.7), (10, 0.7), (15, None)]:
        look(dog, step, shares(160), target=target, checkpoint=True)
    assert dog.best == 10


def test_a_rollback_without_a_checkpoint_is_a_stop() -> None:
    dog = guard("rollback")
    look(dog, 5, shares(160))
    done = look(dog, 10, shares(100), checkpoint=True)
    assert (done.action, done.back_to) == ("stop", None)


def test_the_gravest_action_wins_and_an_alert_does_not_spoil_a_checkpoint() -> None:
    style = WatchedSuite(name="style", margin=0.05)
    key = WatchedSuite(name="key", margin=0.05, action="rollback")
    dog = watch(style, key, looks=10)
    dog.set_base({"style": shares(160), "key": shares(160)})
    first = dog.observe(5, {"style": shares(90), "key": shares(160)}, checkpoint=True)
    assert (first.action, dog.best) == ("alert", 5)
    second = dog.observe(10, {"style": shares(90), "key": shares(90)}, checkpoint=True)
    assert (second.action, second.back_to) == ("rollback", 5)


def test_a_step_looked_at_again_takes_the_place_of_what_came_after() -> None:
    dog = guard("rollback")
    look(dog, 5, shares(160), checkpoint=True)
    look(dog, 10, shares(160), target=0.9, checkpoint=True)
    look(dog, 5, shares(160), target=0.1, checkpoint=True)
    assert dog.best == 5


# --- how often it is wrong -----------------------------------------------------------------


def alarms_of_shares(trials: int, fall: float, *, level: float) -> float:
    """How often five looks at two suites, of which each truly falls by `fall`, call a fall.

    All items are solved at first, so a fall is a loss of each with that chance.
    """
    rng = np.random.default_rng(3)
    suites = [WatchedSuite(name=name, margin=0.05) for name in ("a", "b")]
    alarms = 0
    for _ in range(trials):
        dog = watch(*suites, looks=5, level=level)
        dog.set_base({suite.name: shares(100, n=100) for suite in suites})
        looks = [
            {s.name: scored(*(rng.random(100) >= fall).astype(float).tolist()) for s in suites}
            for _ in range(5)
        ]
        alarms += any(dog.observe(step, marks).fallen for step, marks in enumerate(looks))
    return alarms / trials


def alarms_of_losses(trials: int, fall: float, *, level: float) -> float:
    """The same of one suite of losses, with noise of twice the margin in every text."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(trials):
        dog = Watchdog([TEXT], looks=5, level=level)
        base = rng.normal(3, 0.5, 40)
        dog.set_base({"text": texts(*base.tolist())})
        alarms += any(
            dog.observe(
                step, {"text": texts(*(base + fall + rng.normal(0, 0.2, 40)).tolist())}
            ).fallen
            for step in range(5)
        )
    return alarms / trials


def at_most(level: float, trials: int) -> float:
    """The level, and three standard errors of so many trials."""
    return level + 3 * (level * (1 - level) / trials) ** 0.5


def test_false_alarms_are_no_more_than_the_stated_level() -> None:
    """Where the truth is exactly the margin, the worst that is no fall."""
    assert alarms_of_shares(40, 0.05, level=0.1) <= at_most(0.1, 40)
    assert 0 < alarms_of_losses(60, 0.1, level=0.3) <= at_most(0.3, 60)


def test_noise_around_no_change_raises_no_alarm() -> None:
    assert alarms_of_shares(20, 0.0, level=0.1) == 0
    assert alarms_of_losses(20, 0.0, level=0.1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_false_alarms_in_many_trials_are_no_more_than_the_stated_level(level: float) -> None:
    assert alarms_of_shares(1000, 0.05, level=level) <= at_most(level, 1000)
    found = alarms_of_losses(1000, 0.1, level=level)
    assert level / 2 < found <= at_most(level, 1000), "the level is spent, and not exceeded"


def test_a_real_fall_is_seen() -> None:
    rng = np.random.default_rng(5)
    seen = 0
    for _ in range(50):
        dog = watch(looks=10)
        dog.set_base({"chat": shares(200)})
        now = scored(*(rng.random(200) >= 0.2).astype(float).tolist())
        seen += bool(look(dog, 1, now).fallen)
    assert seen >= 45


def test_more_looks_ask_for_more_evidence() -> None:
    falls: list[float] = []
    for looks in (1, 10, 100):
        dog = watch(looks=looks)
        dog.set_base({"chat": shares(160)})
        falls.append(look(dog, 1, shares(140)).findings[0].least_fall)
    assert falls == sorted(falls, reverse=True)
    assert len(set(falls)) == 3


# --- resuming, and what is refused ---------------------------------------------------------


def test_a_resumed_watch_decides_as_if_it_had_never_stopped() -> None:
    suites = [WatchedSuite(name="chat", margin=0.05, action="rollback"), TEXT]
    base = {"chat": shares(160), "text": texts(3.0, 2.5, 3.5)}
    whole = watch(*suites, looks=10)
    whole.set_base(base)
    first = {"chat": shares(159), "text": texts(3.01, 2.5, 3.5)}
    whole.observe(5, first, target=0.4, checkpoint=True)
    resumed = watch(*suites, looks=10)
    assert not resumed.based
    resumed.restore(json.loads(json.dumps(whole.state())))
    assert resumed.based
    last = {"chat": shares(90), "text": texts(3.2, 2.9, 3.4)}
    assert resumed.observe(10, last, target=0.5) == whole.observe(10, last, target=0.5)
    assert resumed.state() == whole.state()


def test_marks_come_from_evaluations_and_losses() -> None:
    items = tuple(
        Item(
            task=f"t{i}",
            domain=domain,
            tier=0,
            problem=f"p{i // 2}",
            prompt="",
            answer=None,
            completion="",
            score=score,
            tokens=3,
            truncated=False,
            evidence="",
        )
        for i, (domain, score) in enumerate([("sums", 1.0), ("sums", None), ("code", 0.5)])
    )
    evaluation = Evaluation(suite="heldout", step=0, version=0, weights=0, items=items)
    assert [(m.key, m.value, m.cluster) for m in marks_of_evaluation(evaluation, "sums")] == [
        ("t0", 1.0, "sums p0"),
        ("t1", None, "sums p0"),
    ]
    assert len(marks_of_evaluation(evaluation)) == 3
    (mark,) = marks_of_losses([TextLoss(key="a", nats=6.0, tokens=2)])
    assert (mark.key, mark.value, mark.tokens) == ("a", 6.0, 2)


def test_what_cannot_be_watched_is_refused() -> None:
    for bad in (0.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="a margin is above 0"):
            WatchedSuite(name="x", margin=bad)
    with pytest.raises(ValueError, match="of nats, less is better"):
        WatchedSuite(name="x", margin=1, scale="nats")
    with pytest.raises(ValueError, match="each of them once"):
        watch(CHAT, CHAT)
    with pytest.raises(ValueError, match="each of them once"):
        Watchdog([], looks=1)
    for looks, level in ((0, 0.05), (1, 0.0), (1, 1.0)):
        with pytest.raises(ValueError, match="out of range"):
            watch(looks=looks, level=level)
    dog = watch()
    with pytest.raises(ValueError, match="no base"):
        look(dog, 1, shares(1))
    with pytest.raises(ValueError, match="watched are"):
        dog.set_base({"other": shares(1)})
    dog.set_base({"chat": shares(160)})
    with pytest.raises(ValueError, match="not those of the base"):
        look(dog, 1, shares(1, n=10))
    dog = Watchdog([TEXT], looks=1)
    dog.set_base({"text": scored(None, 1.0)})
    with pytest.raises(ValueError, match="text 0 has no loss"):
        dog.observe(1, {"text": scored(None, 1.0)})
