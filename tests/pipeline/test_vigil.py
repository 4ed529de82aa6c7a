from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import Exit, NoSignalError
from headrace.pipeline.vigil import Vigil
from headrace.recipe import StopSpec
from headrace.types import Ending, Trajectory, Turn, Verdict
from pipeline_support import ShareOfVowels, Vowels

SPEC = StopSpec(no_signal=3, mastered=0.9, all_truncated=2, unjudged=2)


def attempts(
    *scores: float | None, ending: Ending = "finished", groups: tuple[str, ...] = ("g", "g")
) -> list[Trajectory]:
    """Two attempts with these scores (one score: both have it), of these groups."""
    ref = ShareOfVowels().ref
    empty = Turn(
        role="assistant",
        text="",
        ids=np.zeros(0, np.int32),
        sampled=np.zeros(0, np.bool_),
        logps=np.zeros(0, np.float32),
    )
    return [
        Trajectory(
            task=Vowels("vowels").task(0, 0),
            group=group,
            attempt=attempt,
            seed=0,
            turns=(empty,),
            ending=ending,
            verdict=Verdict(score=score, verifier=ref, fault="verifier" if score is None else None),
        )
        for attempt, (score, group) in enumerate(zip((scores * 2)[:2], groups, strict=True))
    ]


def test_silence_below_mastery_is_an_error_with_its_own_exit_code() -> None:
    vigil = Vigil(SPEC)
    assert vigil.observe(attempts(0.0)) is None
    assert vigil.observe(attempts(0.0)) is None
    with pytest.raises(NoSignalError, match="no learning signal in 3 steps") as raised:
        vigil.observe(attempts(0.0))
    assert raised.value.exit_code == Exit.NO_SIGNAL == 4
    assert "first_tier" in raised.value.hint


def test_silence_at_full_marks_is_mastery() -> None:
    vigil = Vigil(SPEC)
    told = [vigil.observe(attempts(1.0)) for _ in range(3)]
    assert told == [None, None, "mastered"]


def test_a_signal_ends_the_silence() -> None:
    vigil = Vigil(SPEC)
    for scores in ((0.0,), (0.0,), (0.0, 1.0), (0.0,), (0.0,)):
        assert vigil.observe(attempts(*scores)) is None


def test_groups_that_differ_only_from_each_other_are_a_signal_where_all_are_compared() -> None:
    apart = attempts(0.0, 1.0, groups=("a", "b"))
    assert not Vigil(SPEC).signal(apart)
    assert Vigil(SPEC, batch_wide=True).signal(apart)


def test_all_truncated_is_an_error_that_names_the_setting() -> None:
    vigil = Vigil(SPEC)
    assert vigil.observe(attempts(0.0, 0.5, ending="truncated")) is None
    with pytest.raises(NoSignalError, match="token limit") as raised:
        vigil.observe(attempts(0.0, 0.5, ending="truncated"))
    assert "max_new_tokens" in raised.value.hint


def test_a_verifier_that_judges_nothing_is_an_error_with_its_evidence() -> None:
    vigil = Vigil(SPEC)
    vigil.observe(attempts(None))
    with pytest.raises(NoSignalError, match="could be judged"):
        vigil.observe(attempts(None))


def test_the_watch_goes_on_where_it_stood_after_a_restart() -> None:
    vigil = Vigil(SPEC)
    vigil.observe(attempts(0.0))
    vigil.observe(attempts(0.0))
    again = Vigil(SPEC)
    again.restore(vigil.state())
    with pytest.raises(NoSignalError):
        again.observe(attempts(0.0))
