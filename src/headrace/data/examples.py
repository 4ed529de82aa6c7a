"""From what was recorded to `Example`s: rows of files, reference answers of tasks, stored attempts.

A *unit* is what counts as one in a batch: a conversation, or the two sides of a preference. Every
example carries where it came from, down to the row and its hash, the task, or the attempt.

May be known by pipeline; knows rendering, and domains only through their protocol.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from headrace.data.conversations import Conversation, PreferenceRow, understand
from headrace.data.honeypots import bait_of
from headrace.data.messages import RecordedMessage, Unfit
from headrace.data.render import Rendered, Renderer, Talk, TrainOn
from headrace.data.rows import Refusals, Refused, Row, read_rows
from headrace.errors import ModelError
from headrace.protocols import Domain, reference_of
from headrace.recipe.recorded import DataSource
from headrace.types import (
    Example,
    Ids,
    ImagePart,
    Json,
    Mask,
    Task,
    Trajectory,
    content_hash,
)

__all__ = ["ExampleMaker", "SourceUnits", "Unit", "Want"]

Unit = tuple[Example, ...]
Want = Literal["demonstration", "pair", "label"]

_CHUNK = 1024
_REFERENCES = 1000
_TRIES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUnits:
    """What a source holds, in its own order, and what of it was refused."""

    units: tuple[Unit, ...]
    refusals: Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meant:
    """What one row or task is to become: `talks` with a label each, together or each alone."""

    talks: tuple[Talk, ...]
    labels: tuple[float, ...]
    group: str
    lineage: Mapping[str, Json]
    refusal: Callable[[str, str], Refused]
    margin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleMaker:
    """Makes the units of one stage's sources.

    `want` "demonstration": conversations to be imitated (those labelled bad are left out);
    "pair": preferences, the two examples of which share a `group`, label 1 and -1; "label":
    single examples that say by label 1 or -1 whether they are good, also from pairs. A
    conversation of more than `max_tokens` tokens is refused, never cut. A source of which more
    than `max_refused` (0..1) are refused raises UsageError with the reasons.
    """

    renderer: Renderer
    want: Want = "demonstration"
    train_on: TrainOn = "assistant"
    max_tokens: int | None = None
    max_refused: float = 0.5

    def from_file(self, source: DataSource) -> SourceUnits:
        """The units of a file of conversations or preferences, at most `source.items`.

        UsageError where the file cannot be read, or too many of its rows are refused.
        """
        gathering = _Gathering(self, source)
        for row in read_rows(Path(source.path or "").expanduser()):
            if gathering.full:
                break
            if isinstance(row, Refused):
                gathering.refusals.refuse(row)
                continue
            try:
                meant = self._meant(row)
            except Unfit as error:
                gathering.refusals.refuse(Refused.of(row, error.reason, error.detail))
            else:
                if meant is None:
                    gathering.refusals.skip("labelled as bad")
                else:
                    gathering.add(meant)
        return gathering.done()

    def from_domain(
        self,
        source: DataSource,
        domain: Domain,
        *,
        seed: int,
        system_prompt: str | None = None,
        tiers: Sequence[int] | None = None,
    ) -> SourceUnits:
        """Training tasks of a domain with their reference answers, `tiers` (all) in turn.

        A prompt has the very ids that `environments.single_turn.SingleTurn` plays it with.
        Distinct tasks, a function of the seed; `source.items` of them, 1000 where it names no
        number, or as many as there are. Held-out tasks are never among them. Needs `want`
        "demonstration".
        """
        if self.want != "demonstration":
            raise ValueError("reference answers are demonstrations, and nothing else")
        wanted = _limited(source, source.items or _REFERENCES)
        gathering = _Gathering(self, wanted)
        for task, number in _training_tasks(domain, seed, tiers or range(domain.tiers)):
            if gathering.full:
                break
            refusal = partial(_refused_task, source.name, number, task)
            answer = reference_of(domain, task)
            if answer is None or not answer.strip():
                gathering.refusals.refuse(refusal("no reference answer", ""))
            elif any(isinstance(part, ImagePart) for m in task.messages for part in m.parts):
                gathering.refusals.refuse(
                    refusal("images, audio and video are not rendered", "image")
                )
            else:
                gathering.add(self._reference(task, answer, system_prompt, refusal))
        return gathering.done()

    def from_trajectories(
        self, source: DataSource, trajectories: Iterable[Trajectory]
    ) -> SourceUnits:
        """Attempts that were played and judged, with the very ids that were read and written.

        Demonstrations are those with a score of `source.min_score` or more that ended by
        themselves; of several with the same ids one is kept. Pairs are, of each group, the best
        that ended by itself against the worst, where their scores differ (`margin`: by how much).
        Labels are 1 from `source.min_score` on, else -1. Attempts without a score, at held-out
        tasks and at honeypots are left out.
        """
        gathering = _Gathering(self, source)
        usable = [attempt for attempt in trajectories if self._usable(attempt, gathering)]
        usable.sort(key=lambda attempt: (attempt.group, attempt.attempt))
        if self.want == "pair":
            for _, siblings in itertools.groupby(usable, key=lambda attempt: attempt.group):
                self._best_and_worst(list(siblings), gathering)
            return gathering.done()
        seen: set[str] = set()
        for attempt in usable:
            good = (attempt.score or 0.0) >= source.min_score
            key = _key(*_tokens(attempt))
            if key in seen:
                gathering.refusals.skip("the same as another")
            elif self.want == "label":
                seen.add(key)
                gathering.keep([(attempt, 1.0 if good else -1.0)])
            elif not good:
                gathering.refusals.skip("a score below min_score")
            elif attempt.ending != "finished":
                gathering.refusals.skip("did not end by itself")
            else:
                seen.add(key)
                gathering.keep([(attempt, 0.0)])
        return gathering.done()

    # --- rows ------------------------------------------------------------------------------

    def _meant(self, row: Row) -> _Meant | None:
        """What a row is to become; None for one that says itself that it is bad; or Unfit."""
        meaning = understand(row.value, columnar=row.columnar)
        if isinstance(meaning, PreferenceRow):
            return self._preference(row, meaning)
        return self._conversation(row, meaning)

    def _conversation(self, row: Row, meaning: Conversation) -> _Meant | None:
        if self.want == "pair":
            raise Unfit("a conversation, where a preference is wanted")
        if meaning.messages[-1].role != "assistant":
            raise Unfit("the last turn is not the assistant's", meaning.messages[-1].role)
        label = 0.0
        if self.want == "label":
            if meaning.label is None:
                raise Unfit("no label of good or bad")
            label = 1.0 if meaning.label else -1.0
        elif meaning.label is False:
            return None
        talk = Talk(messages=meaning.messages, train_on=self.train_on, tools=meaning.tools)
        return _Meant(
            talks=(talk,),
            labels=(label,),
            group=meaning.key,
            lineage=_lineage(row, meaning.shape),
            refusal=partial(Refused.of, row),
        )

    def _preference(self, row: Row, meaning: PreferenceRow) -> _Meant:
        if self.want == "demonstration":
            raise Unfit("a preference, where a conversation is wanted")
        prompt = tuple(replace(message, train=False) for message in meaning.prompt)
        return _Meant(
            talks=tuple(
                Talk(messages=(*prompt, *side), tools=meaning.tools)
                for side in (meaning.chosen, meaning.rejected)
            ),
            labels=(1.0, -1.0),
            group=meaning.key,
            lineage=_lineage(row, meaning.shape),
            refusal=partial(Refused.of, row),
            margin=meaning.margin,
        )

    # --- tasks and attempts ----------------------------------------------------------------

    def _reference(
        self,
        task: Task,
        answer: str,
        system_prompt: str | None,
        refusal: Callable[[str, str], Refused],
    ) -> _Meant:
        asked = (RecordedMessage.of(m.role, m.text, train=False) for m in task.messages)
        said = RecordedMessage.of("assistant", answer)
        return _Meant(
            talks=(Talk(messages=(*asked, said), system=system_prompt),),
            labels=(0.0,),
            group=task.id,
            lineage={"task": task.id, "domain": task.domain, "tier": task.tier},
            refusal=refusal,
        )

    def _usable(self, attempt: Trajectory, gathering: _Gathering) -> bool:
        reasons = {
            "at a held-out task": attempt.task.split != "train",
            "at a honeypot": bait_of(attempt.task) is not None,
            "not judged": attempt.score is None,
            "nothing was written": not attempt.sampled_tokens,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        if reason is not None:
            gathering.refusals.skip(reason)
        return reason is None

    def _best_and_worst(self, siblings: Sequence[Trajectory], gathering: _Gathering) -> None:
        ended = [attempt for attempt in siblings if attempt.ending == "finished"]
        if not ended:
            gathering.refusals.skip("a group of which none ended by itself")
            return
        best = max(ended, key=lambda attempt: attempt.score or 0.0)
        worst = min(siblings, key=lambda attempt: attempt.score or 0.0)
        if (best.score or 0.0) <= (worst.score or 0.0):
            gathering.refusals.skip("a group in which all scored the same")
            return
        gathering.keep([(best, 1.0), (worst, -1.0)])


@dataclass(slots=True)
class _Gathering:
    """The units of one source on their way: rendered in chunks, counted."""

    maker: ExampleMaker
    source: DataSource
    units: list[Unit] = field(default_factory=list[Unit])
    pending: list[_Meant] = field(default_factory=list[_Meant])
    refusals: Refusals = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.source.name)

    @property
    def full(self) -> bool:
        """Whether the source has all the units it may; what is pending is rendered to know."""
        limit = self.source.items
        if limit is not None and len(self.units) + len(self.pending) >= limit:
            self._flush()
        return limit is not None and len(self.units) >= limit

    def add(self, meant: _Meant) -> None:
        self.pending.append(meant)
        if len(self.pending) >= _CHUNK:
            self._flush()

    def keep(self, attempts: Sequence[tuple[Trajectory, float]]) -> None:
        """One unit of attempts with their labels, if it fits."""
        if self.full:
            return
        tokens = [_tokens(attempt) for attempt, _ in attempts]
        if any(self._too_long(len(ids)) for ids, _ in tokens):
            attempt = attempts[0][0]
            self.refusals.refuse(
                Refused(
                    reason="longer than max_tokens",
                    file=self.source.name,
                    number=attempt.attempt,
                    detail=attempt.id,
                )
            )
            return
        keys = [_key(ids, mask) for ids, mask in tokens]
        group = f"{attempts[0][0].task.id}/{content_hash(keys)}"
        margin = 0.0
        if len(attempts) == 2:
            margin = (attempts[0][0].score or 0.0) - (attempts[1][0].score or 0.0)
        self.refusals.accept()
        self.units.append(
            tuple(
                self._example(
                    (ids, mask),
                    group=group,
                    label=label,
                    margin=margin,
                    score=attempt.score,
                    lineage=_lineage_of(attempt),
                )
                for (ids, mask), (attempt, label) in zip(tokens, attempts, strict=True)
            )
        )

    def done(self) -> SourceUnits:
        """All of them; UsageError where too many were refused."""
        self._flush()
        self.refusals.check(self.maker.max_refused)
        return SourceUnits(units=tuple(self.units[: self.source.items]), refusals=self.refusals)

    def _flush(self) -> None:
        pending, self.pending = self.pending, []
        results = iter(self.maker.renderer.examples([t for meant in pending for t in meant.talks]))
        for meant in pending:
            rendered = [next(results) for _ in meant.talks]
            reason = self._unusable(meant, rendered)
            if reason is not None:
                self.refusals.refuse(meant.refusal(reason, ""))
                continue
            self.refusals.accept()
            sides = [side for side in rendered if not isinstance(side, ModelError)]
            self.units += self._assembled(meant, sides)

    def _unusable(
        self, meant: _Meant, rendered: Sequence[tuple[Rendered, ...] | ModelError]
    ) -> str | None:
        for side in rendered:
            if isinstance(side, ModelError):
                return side.what
            if self.maker.want != "demonstration" and len(side) > 1:
                return "an answer of several turns, which the chat template rewrites"
            if not all(part.trainable.any() for part in side):
                return "nothing to learn from"
            if any(self._too_long(len(part.ids)) for part in side):
                return "longer than max_tokens"
        sides = [side[0] for side in rendered if not isinstance(side, ModelError)]
        if len({_key(side.ids, side.trainable) for side in sides}) < len(sides):
            return "both sides have the same tokens"
        return None

    def _too_long(self, length: int) -> bool:
        return self.maker.max_tokens is not None and length > self.maker.max_tokens

    def _assembled(self, meant: _Meant, sides: Sequence[tuple[Rendered, ...]]) -> list[Unit]:
        """One unit of all sides that are compared, or one of each."""
        together = self.maker.want == "pair"
        units: list[Unit] = []
        for number, (parts, label) in enumerate(zip(sides, meant.labels, strict=True)):
            alone = len(sides) > 1 and not together
            units.append(
                tuple(
                    self._example(
                        (part.ids, part.trainable),
                        group=f"{meant.group}/{number}" if alone else meant.group,
                        label=label,
                        margin=meant.margin if together else 0.0,
                        score=None,
                        lineage=meant.lineage
                        if part.turn is None
                        else {**meant.lineage, "turn": part.turn},
                    )
                    for part in parts
                )
            )
        return [tuple(itertools.chain.from_iterable(units))] if together else units

    def _example(
        self,
        tokens: tuple[Ids, Mask],
        *,
        group: str,
        label: float,
        margin: float,
        score: float | None,
        lineage: Mapping[str, Json],
    ) -> Example:
        ids, mask = tokens
        return Example(
            key=_key(ids, mask),
            group=group,
            source=self.source.name,
            ids=ids,
            trainable=mask,
            label=label,
            margin=margin,
            score=score,
            replay=self.source.replay,
            lineage=lineage,
        )


def _limited(source: DataSource, items: int) -> DataSource:
    return source.model_copy(update={"items": items})


def _lineage(row: Row, shape: str) -> dict[str, Json]:
    return {
        "file": row.file,
        "row": row.number,
        "offset": row.offset,
        "row_hash": row.digest,
        "shape": shape,
    }


def _lineage_of(attempt: Trajectory) -> dict[str, Json]:
    verdict = attempt.verdict
    return {
        "trajectory": attempt.id,
        "task": attempt.task.id,
        "domain": attempt.task.domain,
        "tier": attempt.task.tier,
        "verifier": None
        if verdict is None
        else f"{verdict.verifier.id}@{verdict.verifier.version}",
        **attempt.provenance,
    }


def _tokens(attempt: Trajectory) -> tuple[Ids, Mask]:
    """All ids of an attempt, and which of them the policy wrote."""
    ids = np.concatenate([turn.ids for turn in attempt.turns])
    mask = np.concatenate([turn.sampled for turn in attempt.turns])
    mask[:1] = False
    return ids.astype(np.int32), mask


def _key(ids: Ids, mask: Mask) -> str:
    """Content hash of what is learned: 16 hex digits."""
    spelled = (
        len(ids).to_bytes(8, "big") + ids.astype("<i4").tobytes() + np.packbits(mask).tobytes()
    )
    return hashlib.sha256(spelled).hexdigest()[:16]


def _training_tasks(domain: Domain, seed: int, tiers: Sequence[int]) -> Iterator[tuple[Task, int]]:
    """Distinct training tasks, one of each tier in turn, until none has come for a long while."""
    seen: set[str] = set()
    misses = 0
    for number in itertools.count():
        if misses >= _TRIES:
            return
        index = int(content_hash([seed, "reference", domain.name, number], length=15), 16)
        task = domain.task(tiers[number % len(tiers)], index)
        if task.split != "train" or task.id in seen:
            misses += 1
            continue
        misses = 0
        seen.add(task.id)
        yield task, number


def _refused_task(source: str, number: int, task: Task, reason: str, detail: str) -> Refused:
    return Refused(reason=reason, file=source, number=number, detail=detail or f"task {task.id}")
