"""The watch against forgetting: suites that must not fall while something else is learned.

Each watched suite is measured before training and at looks during it, and compared with the
base item by item. It `fell` only where even the better end of the interval lies beyond its
margin, it `held` where the worse end is within; all else is inconclusive. Pure logic: whoever
trains measures, and does what is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from headrace.evaluate.heldout import Evaluation
from headrace.evaluate.perplexity import Interval, TextLoss, mean_loss, paired_loss
from headrace.evaluate.statistics import Difference, Estimate, mean_interval, paired_difference
from headrace.store.cards import Measured, SuiteScore, SuiteVerdict
from headrace.types import Json

__all__ = [
    "Action",
    "Finding",
    "Mark",
    "Watchdog",
    "Watched",
    "WatchedSuite",
    "marks_of_evaluation",
    "marks_of_losses",
]

Action = Literal["alert", "stop", "rollback"]
_SEVERITY: tuple[Action, ...] = ("alert", "stop", "rollback")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSuite:
    """A capability to be kept: it may become worse by `margin`, in the suite's own unit.

    `scale` "share": scores in [0, 1]; "nats": losses of texts, per token. `action` is what a
    fall asks for: a word, an end of training, or an end with the weights of the best checkpoint
    before it.
    """

    name: str
    margin: float
    better: Literal["higher", "lower"] = "higher"
    scale: Literal["share", "nats"] = "share"
    action: Action = "alert"

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise ValueError(f"{self.name}: a margin is above 0, not {self.margin}")
        if self.scale == "nats" and self.better == "higher":
            raise ValueError(f"{self.name}: of nats, less is better")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An item of a suite and what a model got for it; None could not be judged.

    `value` is a score in [0, 1], or the nats that a text of `tokens` tokens cost in all. Items
    of one `cluster` (phrasings of one problem) are not independent.
    """

    key: str
    value: float | None
    cluster: str = ""
    tokens: int = 1


def marks_of_evaluation(evaluation: Evaluation, domain: str | None = None) -> tuple[Mark, ...]:
    """The items of an evaluation, or of one of its domains."""
    return tuple(
        Mark(key=item.task, value=item.score, cluster=f"{item.domain} {item.problem}")
        for item in evaluation.items
        if domain is None or item.domain == domain
    )


def marks_of_losses(losses: Sequence[TextLoss]) -> tuple[Mark, ...]:
    """The texts of a perplexity suite."""
    return tuple(Mark(key=x.key, value=x.nats, cluster=x.key, tokens=x.tokens) for x in losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a watched suite stands at a look, against the base.

    `difference` is after - before at the watch's confidence, in the suite's unit. `least_fall`
    is the smallest worsening that the data allow at the level that one look may spend: a fall is
    where it exceeds the margin.
    """

    suite: WatchedSuite
    step: int
    before: Measured
    after: Measured
    difference: Measured
    least_fall: float
    unscored: int
    verdict: SuiteVerdict

    def score(self) -> SuiteScore:
        """The same for a model card."""
        return SuiteScore(
            suite=self.suite.name,
            before=self.before,
            after=self.after,
            difference=self.difference,
            better=self.suite.better,
            margin=self.suite.margin,
            verdict=self.verdict,
        )

    def payload(self) -> dict[str, Json]:
        """The same for the event log."""
        return {**asdict(self.score()), "least_fall": self.least_fall, "unscored": self.unscored}

    def sentence(self) -> str:
        """The same for a person."""
        unit = " nats per token" if self.suite.scale == "nats" else ""
        change = self.difference
        return (
            f"{self.suite.name} {self.verdict}: {self.before.value:.3f} -> "
            f"{self.after.value:.3f}{unit}, difference {change.value:+.3f} "
            f"[{change.low:+.3f}, {change.high:+.3f}], margin {self.suite.margin:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a look came to. `action` is the gravest that a fall asks for, None: go on.

    An alert is raised once, when its suite begins to be below its margin. With "rollback",
    `back_to` is the step whose checkpoint to take; where there is none the action is "stop".
    """

    findings: tuple[Finding, ...]
    action: Action | None
    back_to: int | None = None

    @property
    def fallen(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "fell")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    step: int
    target: float | None
    checkpoint: bool
    fallen: tuple[str, ...]


class Watchdog:
    """Watches suites over the looks of one training.

    `level` bounds the chance that any of the first `looks` looks at any suite calls a fall where
    the truth is within the margin: each of them spends an equal share of it (Bonferroni), on
    one side. `confidence` is that of the intervals shown, and of "held".
    """

    def __init__(
        self,
        suites: Sequence[WatchedSuite],
        *,
        looks: int,
        level: float = 0.05,
        confidence: float = 0.95,
    ) -> None:
        names = [suite.name for suite in suites]
        if not names or len(set(names)) < len(names):
            raise ValueError("a watch needs suites, and each of them once")
        if looks < 1 or not 0 < level < 1 or not 0 < confidence < 1:
            raise ValueError(f"looks {looks}, level {level}, confidence {confidence}: out of range")
        self._suites = tuple(suites)
        self._spent = level / (looks * len(suites))
        self._confidence = confidence
        self._base: dict[str, tuple[Mark, ...]] = {}
        self._looks: list[_Look] = []

    # --- measuring -------------------------------------------------------------------------

    def set_base(self, marks: Mapping[str, Sequence[Mark]]) -> None:
        """What each suite is compared with: the model before training."""
        self._check_names(marks)
        self._base = {suite.name: tuple(marks[suite.name]) for suite in self._suites}

    @property
    def based(self) -> bool:
        """Whether there is something to compare with."""
        return bool(self._base)

    def observe(
        self,
        step: int,
        marks: Mapping[str, Sequence[Mark]],
        *,
        target: float | None = None,
        checkpoint: bool = False,
    ) -> Watched:
        """Compare a look with the base and decide what to do.

        `target` is how well the model does what it is being taught, higher being better, and
        `checkpoint` whether it can be returned to. A step that was looked at before takes the
        place of that look and of all after it. Raises ValueError where the suites or their items
        are not those of the base, VerifierError where no item of a suite could be judged.
        """
        self._check_names(marks)
        if not self._base:
            raise ValueError("there is no base to compare with")
        findings = tuple(self._compare(suite, step, marks[suite.name]) for suite in self._suites)
        self._looks = [look for look in self._looks if look.step < step]
        before = self._looks[-1].fallen if self._looks else ()
        fallen = tuple(f.suite.name for f in findings if f.verdict == "fell")
        action = self._action(fallen, before)
        back_to = self.best if action == "rollback" else None
        if action == "rollback" and back_to is None:
            action = "stop"
        look = _Look(step=step, target=target, checkpoint=checkpoint, fallen=fallen)
        self._looks.append(look)
        return Watched(findings=findings, action=action, back_to=back_to)

    def _check_names(self, marks: Mapping[str, Sequence[Mark]]) -> None:
        wanted, given = {suite.name for suite in self._suites}, set(marks)
        if wanted != given:
            raise ValueError(f"watched are {sorted(wanted)}, measured were {sorted(given)}")

    def _action(self, fallen: Sequence[str], before: Sequence[str]) -> Action | None:
        asked: set[Action] = {
            suite.action
            for suite in self._suites
            if suite.name in fallen and (suite.action != "alert" or suite.name not in before)
        }
        return max(asked, key=_SEVERITY.index, default=None)

    @property
    def best(self) -> int | None:
        """The step to return to, whose checkpoint must be kept; None where there is none.

        Of the looks with a checkpoint at which nothing had fallen that asks for a rollback: the
        one with the highest target, of equals (or without targets) the latest.
        """
        guarded = {suite.name for suite in self._suites if suite.action == "rollback"}
        sound = [k for k in self._looks if k.checkpoint and not guarded & set(k.fallen)]
        targets = [float("-inf") if look.target is None else look.target for look in sound]
        ranked = max(zip(targets, (look.step for look in sound), strict=True), default=None)
        return None if ranked is None else ranked[1]

    # --- comparing -------------------------------------------------------------------------

    def _compare(self, suite: WatchedSuite, step: int, after: Sequence[Mark]) -> Finding:
        before = self._base[suite.name]
        if [mark.key for mark in before] != [mark.key for mark in after]:
            raise ValueError(f"{suite.name}: the items are not those of the base")
        shown = _difference(suite, before, after, self._confidence)
        strict = _difference(suite, before, after, 1 - 2 * self._spent)
        most_fall = -shown.low if suite.better == "higher" else shown.high
        least_fall = -strict.high if suite.better == "higher" else strict.low
        verdict: SuiteVerdict = "inconclusive"
        if least_fall > suite.margin:
            verdict = "fell"
        elif most_fall < suite.margin:
            verdict = "held"
        return Finding(
            suite=suite,
            step=step,
            before=_measured(_mean(suite, before, self._confidence)),
            after=_measured(_mean(suite, after, self._confidence)),
            difference=_measured(shown),
            least_fall=least_fall,
            unscored=shown.unscored if isinstance(shown, Difference) else 0,
            verdict=verdict,
        )

    # --- state -----------------------------------------------------------------------------

    def state(self) -> dict[str, Json]:
        """All that a resumed training needs to watch on."""
        return {
            "base": {
                name: [[m.key, m.value, m.cluster, m.tokens] for m in marks]
                for name, marks in self._base.items()
            },
            "looks": [[k.step, k.target, k.checkpoint, list(k.fallen)] for k in self._looks],
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """Continue where `state` was taken."""
        self._base = {
            str(name): tuple(
                Mark(key=str(key), value=value, cluster=str(cluster), tokens=int(tokens))
                for key, value, cluster, tokens in marks
            )
            for name, marks in state["base"].items()
        }
        self._looks = [
            _Look(step=int(step), target=target, checkpoint=bool(kept), fallen=tuple(fallen))
            for step, target, kept, fallen in state["looks"]
        ]


def _difference(
    suite: WatchedSuite, before: Sequence[Mark], after: Sequence[Mark], confidence: float
) -> Difference | Interval:
    if suite.scale == "nats":
        return paired_loss(_losses(before), _losses(after), confidence)
    clusters = [mark.cluster or mark.key for mark in before]
    return paired_difference(
        [m.value for m in before], [m.value for m in after], confidence, clusters
    )


def _mean(suite: WatchedSuite, marks: Sequence[Mark], confidence: float) -> Estimate | Interval:
    if suite.scale == "nats":
        return mean_loss(_losses(marks), confidence)
    return mean_interval([mark.value for mark in marks], confidence)


def _losses(marks: Sequence[Mark]) -> list[TextLoss]:
    missing = [mark.key for mark in marks if mark.value is None]
    if missing:
        raise ValueError(f"text {missing[0]} has no loss")
    return [TextLoss(key=m.key, nats=m.value or 0.0, tokens=m.tokens) for m in marks]


def _measured(found: Difference | Estimate | Interval) -> Measured:
    value = found.score if isinstance(found, Estimate) else found.value
    return Measured(value=value, low=found.low, high=found.high, n=found.n)
