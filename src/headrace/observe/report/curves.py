"""The reward curve and the small charts that say whether training is healthy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.observe.report.gather import Material, Move
from headrace.observe.report.markup import Html, tag
from headrace.observe.report.parts import absent, section, table
from headrace.observe.report.plots import Axis, Band, Chart, Dots, Line, Mark, chart
from headrace.observe.report.values import brief, fixed
from headrace.store.events import Event
from headrace.store.lenient import number

__all__ = ["chart_steps", "curves", "health", "learned", "signs"]

_Values = list[float | None]
_MOST_MOVES = 500
_ABOUT_MOVES = (
    "Dotted lines mark a change of difficulty; the reward may fall there, because the tasks "
    "became harder."
)


def curves(material: Material) -> Html:
    """The section of the reward curve."""
    title = "Reward over the steps"
    if not material.steps:
        return section("reward", title, absent("No training step has finished yet."))
    axis = _axis(material)
    columns = _Columns(material, axis)
    mean, stderr = columns.of("reward", "mean"), columns.of("reward", "stderr")
    solved = columns.of("reward", "solved")
    near = Band(
        name="± 1 standard error",
        low=_beside(mean, stderr, -1),
        high=_beside(mean, stderr, 1),
    )
    spread = Band(
        name="middle 80 % of attempts",
        low=columns.of("reward", "p10"),
        high=columns.of("reward", "p90"),
        tone="far",
    )
    mean_line = Line(name="mean reward", values=mean)
    binary = _same(mean, solved)
    spec = Chart(
        label=_described("Mean reward", columns.steps, mean),
        lines=(mean_line,)
        if binary
        else (mean_line, Line(name="share solved", values=solved, tone="second")),
        bands=(near,) if binary else (spread, near),
        dots=_heldout_dots(material, axis),
        marks=_marks(material.moves, axis),
        low=0.0,
        high=1.0,
    )
    return section(
        "reward",
        title,
        tag("figure", chart(spec, axis), class_="wide"),
        _moves(material.moves),
        lead=" ".join(
            [
                "The mean score of the attempts the model was trained on.",
                *(["Every attempt scored 0 or 1, so this is the share solved."] if binary else []),
                *([_ABOUT_MOVES] if material.moves else []),
                *_pooled(axis),
            ]
        ),
    )


def _same(mean: _Values, solved: _Values) -> bool:
    """Whether all scores were 0 or 1: only then is their mean the share solved."""
    pairs = [(m, s) for m, s in zip(mean, solved, strict=True) if m is not None]
    return all(s is not None and abs(m - s) < 1e-9 for m, s in pairs)


def _marks(moves: Sequence[Move], axis: Axis) -> tuple[Mark, ...]:
    several = len({move.domain for move in moves}) > 1
    return tuple(
        Mark(step=move.step, label=_label(move, several))
        for move in moves
        if axis.first <= move.step <= axis.last
    )


def _heldout_dots(material: Material, axis: Axis) -> tuple[Dots, ...]:
    at = {evaluation.step: evaluation for evaluation in material.evaluations}
    if not at:
        return ()
    found = [at.get(step) for step in axis.steps]
    return (
        Dots(
            name="held-out",
            values=[e.score if e else None for e in found],
            low=[e.low if e else None for e in found],
            high=[e.high if e else None for e in found],
        ),
    )


def _label(move: Move, several: bool) -> str:
    tiers = f"{_tier(move.from_tier)}→{_tier(move.to_tier)}"
    return f"{move.domain} {tiers}" if several else f"tier {tiers}"


def _tier(tier: int | None) -> str:
    return "?" if tier is None else str(tier)


def _moves(moves: Sequence[Move]) -> Html | None:
    if not moves:
        return None
    rows = [
        [
            f"{move.step:,}",
            tag("bdi", move.domain),
            f"{_tier(move.from_tier)} → {_tier(move.to_tier)}",
            fixed(move.pass_rate),
        ]
        for move in moves[:_MOST_MOVES]
    ]
    left = len(moves) - len(rows)
    return tag(
        "details",
        tag("summary", f"All changes of difficulty ({len(moves):,})"),
        table(["Step", "Domain", "Tier", "At a pass rate of"], rows),
        tag("p", f"The other {left:,} are in events.jsonl.", class_="note") if left else None,
    )


# --- columns -------------------------------------------------------------------------------


def chart_steps(material: Material) -> list[int]:
    """The step of each point of every chart, for the readout of the page's script."""
    return _axis(material).points if material.steps else []


def _axis(material: Material) -> Axis:
    """Every step with an event or an evaluation."""
    steps = {event.step for event in material.steps} | {e.step for e in material.evaluations}
    ordered = tuple(sorted(steps))
    return Axis(steps=ordered, first=ordered[0], last=ordered[-1])


def _pooled(axis: Axis) -> list[str]:
    if axis.width <= 1:
        return []
    return [f"Each point stands for {axis.width} steps: their mean, or for maxima their maximum."]


class _Columns:
    """Numbers of the step events, one for each step of the axis; None where not measured."""

    def __init__(self, material: Material, axis: Axis) -> None:
        self.steps = axis.steps
        events = {event.step: event for event in material.steps}
        self._events = [events.get(step) for step in axis.steps]

    def by(self, read: Callable[[Event], float | None]) -> _Values:
        return [None if event is None else read(event) for event in self._events]

    def of(self, *path: str) -> _Values:
        return self.by(lambda event: number(event.payload, *path))

    def timing(self, name: str) -> _Values:
        return self.by(lambda event: number(event.timing, name))


def _beside(mean: _Values, stderr: _Values, sign: int) -> _Values:
    """One standard error below or above, as far as a score can go."""
    return [
        None if m is None or s is None else min(max(m + sign * s, 0.0), 1.0)
        for m, s in zip(mean, stderr, strict=True)
    ]


def _described(name: str, steps: Sequence[int], values: _Values) -> str:
    """What a chart shows, for people who do not see it."""
    known = [(step, v) for step, v in zip(steps, values, strict=True) if v is not None]
    if not known:
        return f"{name}: not measured"
    (first, start), (last, end) = known[0], known[-1]
    low, high = min(v for _, v in known), max(v for _, v in known)
    return (
        f"{name}: {brief(start)} in step {first}, {brief(end)} in step {last}; "
        f"lowest {brief(low)}, highest {brief(high)}"
    )


# --- health --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Vital:
    """A small chart: its lines and what a good one looks like. The axis reaches at least
    `high`, so that what does not matter looks flat."""

    title: str
    unit: str
    good: str
    lines: tuple[Line, ...]
    high: float | None = None


def health(material: Material) -> Html:
    """The section of small charts."""
    title = "Is training healthy?"
    if not material.steps:
        return section("health", title, absent("There are no steps to judge by yet."))
    axis = _axis(material)
    columns = _Columns(material, axis)
    figures: list[Html] = []
    unmeasured: list[str] = []
    for vital in [*_policy_vitals(columns), *_sample_vitals(columns), *_machine_vitals(columns)]:
        if all(value is None for line in vital.lines for value in line.values):
            unmeasured.append(vital.title)
        else:
            figures.append(_figure(vital, axis))
    return section(
        "health",
        title,
        tag("div", *figures, class_="charts"),
        tag("p", f"Not measured in this run: {', '.join(unmeasured)}.", class_="note")
        if unmeasured
        else None,
        lead="Numbers beside the names are of the latest step, or of the step you point at.",
    )


def signs(material: Material) -> Html | None:
    """The small charts of the watch over rewards: those that were measured."""
    if not material.steps:
        return None
    axis = _axis(material)
    measured = [
        vital
        for vital in _trust_vitals(_Columns(material, axis))
        if any(value is not None for line in vital.lines for value in line.values)
    ]
    figures = [_figure(vital, axis) for vital in measured]
    return tag("div", *figures, class_="charts") if figures else None


def learned(material: Material) -> Html | None:
    """The section of what a run on recorded data learned; None for one that played."""
    if not any("units" in event.payload for event in material.steps):
        return None
    axis = _axis(material)
    vitals = _study_vitals(_Columns(material, axis), _validation(material, axis))
    measured = [
        vital
        for vital in vitals
        if any(value is not None for line in vital.lines for value in line.values)
    ]
    figures = [_figure(vital, axis) for vital in measured]
    return section(
        "learning",
        "What was learned from recorded data",
        tag("div", *figures, class_="charts"),
        lead="Validation is measured on units that are never trained on.",
    )


def _validation(material: Material, axis: Axis) -> dict[str, _Values]:
    """What was measured on the validation units, by name; None where nothing was."""
    at = {
        event.step: event.payload
        for event in material.events
        if event.kind == "evaluation" and event.payload.get("suite") == "validation"
    }
    return {
        name: [number(at.get(step, {}), name) for step in axis.steps]
        for name in ("loss", "accuracy")
    }


def _study_vitals(columns: _Columns, validation: dict[str, _Values]) -> list[_Vital]:
    return [
        _Vital(
            "Loss",
            "",
            "Falls and levels off. Validation that rises while training falls: stop earlier.",
            (
                Line(name="training", values=columns.of("loss")),
                Line(name="validation (nats per token)", values=validation["loss"], tone="second"),
            ),
        ),
        _Vital(
            "Pairs told apart",
            "share",
            "Climbs above one half. One at once: the pairs differ in something trivial.",
            (
                Line(name="training", values=columns.of("accuracy")),
                Line(name="validation", values=validation["accuracy"], tone="second"),
            ),
            high=1.0,
        ),
        _Vital(
            "Rewards of the pair",
            "implicit, in nats times beta",
            "They part. Both falling far: the policy forgets what is good to punish what is not.",
            (
                Line(name="preferred", values=columns.of("chosen_reward")),
                Line(name="other", values=columns.of("rejected_reward"), tone="second"),
            ),
        ),
        _Vital(
            "Likelihood of the preferred",
            "nats per sequence",
            "Steady. A steady fall is the known weakness of direct preference losses: give them "
            "an sft_weight.",
            (Line(name="preferred", values=columns.of("chosen_logp")),),
        ),
        _Vital(
            "Replay",
            "share of examples",
            "As the recipe mixes it.",
            (Line(name="replay", values=columns.of("replay")),),
            high=1.0,
        ),
    ]


def _figure(vital: _Vital, axis: Axis) -> Html:
    spec = Chart(
        label=_described(vital.title, axis.steps, list(vital.lines[0].values)),
        lines=vital.lines,
        low=0.0,
        high=vital.high,
    )
    unit = tag("small", vital.unit) if vital.unit else None
    head = tag("h3", vital.title, " ", unit)
    return tag("figure", head, chart(spec, axis), tag("figcaption", vital.good))


def _policy_vitals(columns: _Columns) -> list[_Vital]:
    return [
        _Vital(
            "Distance to the reference",
            "nats per token",
            "Grows slowly and levels off. A sudden climb: the model runs away from what it knew.",
            (Line(name="KL", values=columns.of("kl_reference")),),
        ),
        _Vital(
            "Entropy",
            "nats per token",
            "Falls gently. Near zero the attempts are all alike and nothing is left to learn from.",
            (Line(name="entropy", values=columns.of("entropy")),),
        ),
        _Vital(
            "Gradient norm",
            "before clipping",
            "Steady. Spikes come before trouble; a flat zero means no learning.",
            (Line(name="norm", values=columns.of("gradient_norm"), pool="max"),),
        ),
        _Vital(
            "Clipped tokens",
            "share",
            "Small, below a tenth. More: the updates are too large for the data they rest on.",
            (Line(name="clipped", values=columns.of("clipped_share")),),
            high=0.1,
        ),
        _Vital(
            "Effective samples",
            "share of tokens",
            "Near 1: probability ratios of learner to sampler are alike. Low: the samples are too "
            "old to say much about the policy of now.",
            (
                Line(name="effective", values=columns.of("effective_share")),
                Line(name="corrected", values=columns.of("corrected_share"), tone="second"),
            ),
        ),
        _Vital(
            "Sampler against learner",
            "nats per token",
            "Almost zero without lag: both must agree on what was sampled. With a lag it shows "
            "how far the weights moved in the meantime.",
            (Line(name="KL", values=columns.of("kl_behaviour")),),
            high=0.001,
        ),
    ]


def _sample_vitals(columns: _Columns) -> list[_Vital]:
    return [
        _Vital(
            "Length of an attempt",
            "tokens",
            "Whatever the tasks need. Racing to the limit, or collapsing, are both bad signs.",
            (
                Line(name="mean", values=columns.of("length", "mean")),
                Line(name="95th percentile", values=columns.of("length", "p95"), tone="second"),
            ),
        ),
        _Vital(
            "Cut at the token limit",
            "share of attempts",
            "Falls to near zero. An attempt that is cut rarely earns anything.",
            (Line(name="cut", values=columns.of("truncated")),),
            high=1.0,
        ),
        _Vital(
            "Groups with a spread",
            "share of groups",
            "Well above zero. Only groups whose attempts score differently teach anything.",
            (Line(name="with a spread", values=columns.by(_spread)),),
            high=1.0,
        ),
        _Vital(
            "Not judged",
            "attempts a step",
            "Zero. These attempts could not be scored, and do not count as wrong.",
            (Line(name="not judged", values=columns.of("credit", "unscored"), pool="max"),),
        ),
    ]


def _trust_vitals(columns: _Columns) -> list[_Vital]:
    return [
        _Vital(
            "Known tricks",
            "share of attempts",
            "Zero. What verifiers caught is worth nothing, but a rise says where this is going.",
            (Line(name="tricks", values=columns.of("watch", "tricks")),),
            high=0.1,
        ),
        _Vital(
            "Planted answers repeated",
            "share of honeypot attempts",
            "Falls, or stays low. A rise: the policy takes what lies about instead of working.",
            (Line(name="repeated", values=columns.of("watch", "bait")),),
            high=1.0,
        ),
        _Vital(
            "Visible tests against hidden ones",
            "difference of the shares passed",
            "Near zero. A rise: answers are fitted to the examples that the prompt shows.",
            (Line(name="gap", values=columns.of("watch", "gap")),),
            high=0.5,
        ),
    ]


def _machine_vitals(columns: _Columns) -> list[_Vital]:
    return [
        _Vital(
            "Time of a step",
            "seconds",
            "Steady. Playing usually takes the larger part.",
            (
                Line(name="play", values=columns.timing("play")),
                Line(name="learn", values=columns.timing("learn"), tone="second"),
            ),
        ),
        _Vital(
            "Speed",
            "sampled tokens per second",
            "Steady; it follows the length of the attempts.",
            (Line(name="tokens/s", values=columns.timing("tokens_per_second")),),
        ),
    ]


def _spread(event: Event) -> float | None:
    groups = number(event.payload, "credit", "groups")
    spread = number(event.payload, "credit", "with_spread")
    return spread / groups if groups and spread is not None else None
