from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import Exit, NoSignalError
from headrace.pipeline.vigil import Vigil
from headrace.recipe import StopSpec
from headrace.types import Ending, Trajectory, Turn, Verdict
from pipeline_support import ShareOfVowels, Vowels

SPEC = StopSpec(no_signal=3, mastered=0.9, all_truncated=2)


def attempts(score: float | None, ending: Ending = "finished") -> list[Trajectory]:
    ref = ShareOfVowels().ref
    verdict = Verdict(score=score, verifier=ref, fault=None if score is not None else "verifier")
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
            group="g",
            attempt=attempt,
            seed=0,
            turns=(empty,),
            ending=ending,
            verdict=verdict,
        )
        for attempt in range(2)
    ]


def test_silence_below_mastery_is_an_error_with_its_own_exit_code() -> None:
    vigil = Vigil(SPEC)
    assert vigil.observe(attempts(0.0), signal=False) is None
    assert vigil.observe(attempts(0.0), signal=False) is None
    with pytest.raises(NoSignalError, match="no learning signal in 3 steps") as raised:
        vigil.observe(attempts(0.0), signal=False)
    assert raised.value.exit_code == Exit.NO_SIGNAL == 4
    assert "first_tier" in raised.value.hint


def test_silence_at_full_marks_is_mastery() -> None:
    vigil = Vigil(SPEC)
    told = [vigil.observe(attempts(1.0), signal=False) for _ in range(3)]
    assert told == [None, None, "mastered"]


def test_a_signal_ends_the_silence() -> None:
    vigil = Vigil(SPEC)
    for signal in (False, False, True, False, False):
        assert vigil.observe(attempts(0.0), signal=signal) is None


def test_all_truncated_is_an_error_that_names_the_setting() -> None:
    vigil = Vigil(SPEC)
    assert vigil.observe(attempts(0.5, "truncated"), signal=True) is None
    with pytest.raises(NoSignalError, match="token limit") as raised:
        vigil.observe(attempts(0.5, "truncated"), signal=True)
    assert "max_new_tokens" in raised.value.hint


def test_a_verifier_that_judges_nothing_is_an_error_with_its_evidence() -> None:
    vigil = Vigil(SPEC)
    vigil.observe(attempts(None), signal=False)
    with pytest.raises(NoSignalError, match="could be judged"):
        vigil.observe(attempts(None), signal=False)


def test_the_watch_goes_on_where_it_stood_after_a_restart() -> None:
    vigil = Vigil(SPEC)
    vigil.observe(attempts(0.0), signal=False)
    vigil.observe(attempts(0.0), signal=False)
    again = Vigil(SPEC)
    again.restore(vigil.state())
    with pytest.raises(NoSignalError):
        again.observe(attempts(0.0), signal=False)
