"""Attempts of the first and the last step: what training itself looked at.

Every text here was written by a model or a task file.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.observe.report.gather import Material, StepAttempts
from headrace.observe.report.markup import Html, clip, tag
from headrace.observe.report.parts import absent, answer_text, score_mark, section, verbatim
from headrace.observe.report.values import count
from headrace.types import Trajectory

__all__ = ["attempts"]

_GROUPS = 3
_ATTEMPTS = 16
_CLIP = 1200
_ENDINGS = {
    "finished": "finished",
    "truncated": "cut at the token limit",
    "budget": "out of budget",
    "failed": "failed",
}


def attempts(material: Material) -> Html:
    """The section: a few whole groups of the first and of the last step."""
    title = "Attempts in training"
    if not material.played:
        return section("attempts", title, absent("No attempts are on disk yet."))
    return section(
        "attempts",
        title,
        *(_step(played) for played in material.played),
        lead="A group is one task tried several times. What scored above its group is made more "
        "likely, what scored below is made less likely; a group without a difference teaches "
        "nothing.",
    )


def _step(played: StepAttempts) -> Html:
    groups = _chosen(played.groups)
    told = f"Step {played.step:,}: {len(groups)} of {count(len(played.groups), 'group')}"
    return tag("details", tag("summary", told), *(_group(group) for group in groups), open=True)


def _chosen(groups: Sequence[list[Trajectory]]) -> list[list[Trajectory]]:
    """Groups with a spread of scores before others, different domains before the same."""
    seen: dict[str, int] = {}
    ranked: list[tuple[int, bool, int]] = []
    for index, group in enumerate(groups):
        domain = group[0].task.domain
        spread = len({t.score for t in group if t.score is not None}) > 1
        key = f"{domain} {spread}"
        seen[key] = seen.get(key, 0) + 1
        ranked.append((seen[key], not spread, index))
    picks = sorted(index for _, _, index in sorted(ranked, key=_spread_first)[:_GROUPS])
    return [groups[index] for index in picks]


def _spread_first(rank: tuple[int, bool, int]) -> tuple[bool, int, int]:
    turn, flat, index = rank
    return flat, turn, index


def _group(group: Sequence[Trajectory]) -> Html:
    task = group[0].task
    prompt = "\n".join(message.text for message in task.messages)
    ordered = sorted(group, key=lambda t: t.attempt)
    left = len(ordered) - _ATTEMPTS
    return tag(
        "article",
        tag(
            "header",
            tag("b", "group ", tag("bdi", group[0].group)),
            tag("span", tag("bdi", task.domain), f", tier {task.tier}"),
            tag("span", _told(group)),
        ),
        tag(
            "div",
            verbatim(clip(prompt, _CLIP), "prompt"),
            tag("p", "Reference answer: ", tag("code", clip(answer_text(task.answer), _CLIP))),
            class_="task",
        ),
        tag("div", *(_attempt(t) for t in ordered[:_ATTEMPTS]), class_="tries"),
        tag("p", f"{count(left, 'further attempt')} left out.", class_="note")
        if left > 0
        else None,
    )


def _told(group: Sequence[Trajectory]) -> str:
    solved = sum(t.verdict is not None and t.verdict.solved for t in group)
    scores = [t.score for t in group if t.score is not None]
    mean = f", mean score {sum(scores) / len(scores):.2f}" if scores else ""
    return f"{solved} of {len(group)} solved{mean}"


def _attempt(trajectory: Trajectory) -> Html:
    told = f"{count(trajectory.sampled_tokens, 'token')}, {_ENDINGS[trajectory.ending]}"
    why = ""
    if trajectory.failure is not None:
        why = f"{trajectory.failure.boundary}: {trajectory.failure.message}"
    elif trajectory.verdict is not None and trajectory.verdict.score is None:
        why = trajectory.verdict.evidence
    return tag(
        "div",
        tag("h4", score_mark(trajectory.score), " ", tag("small", told)),
        verbatim(clip(trajectory.completion, _CLIP)),
        tag("p", clip(why, _CLIP), class_="note") if why else None,
        class_="side",
    )
