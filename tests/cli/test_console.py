"""What a person sees while a run works, on a terminal and off one."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys

import pytest

from headrace.observe.console import ConsoleListener, format_duration, format_step
from headrace.observe.listener import Listener, QuietListener, StepLine

FULL = StepLine(
    step=12,
    steps=24,
    reward=0.83,
    reward_stderr=0.03,
    heldout=0.71,
    length=9.2,
    truncated=0.02,
    kl=0.012,
    entropy=0.41,
    tokens_per_second=812,
    samples_per_second=6.1,
    eta=130,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_is_one_line_with_every_number() -> None:
    assert " ".join(format_step(FULL).split()) == (
        "step 12/24 reward 0.83 ±0.03 held-out 0.71 len 9.2 trunc 2% kl 0.012 ent 0.41 "
        "812 tok/s 6.1 smp/s eta 2m10s"
    )


def test_what_was_not_measured_is_a_dash_and_lines_stay_aligned() -> None:
    empty = format_step(StepLine(step=1, steps=24))
    assert "0" not in empty
    assert empty.count(" -") == 9
    assert empty.index("eta") == format_step(FULL).index("eta")
    every_field = {field.name for field in dataclasses.fields(StepLine)}
    assert every_field - {"step", "steps"} == {
        field.name for field in dataclasses.fields(StepLine) if field.default is None
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.6, "1m00s"), (3599.7, "1h00m"), (-3, "0s"), (float("nan"), "-")],
)
def test_durations_round_before_they_are_split(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_off_a_terminal_progress_is_at_most_a_line_in_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    listener: Listener = ConsoleListener(stream, clock=clock)
    for second in range(31):
        clock.now = float(second)
        listener.progress("evaluating", second, 31)
    assert stream.getvalue().splitlines() == [
        "evaluating: 32%",
        "evaluating: 65%",
        "evaluating: 97%",
    ]
    listener.progress("evaluating", 31, 31)
    clock.now = 99.0
    listener.progress("short work after a long silence", 0, 1)
    listener.progress("short work after a long silence", 1, 1)
    listener.close()
    assert stream.getvalue().splitlines()[3:] == ["evaluating: 100%"]


def test_on_a_terminal_a_bar_goes_away_and_the_step_line_stays() -> None:
    stream = Terminal()
    listener = ConsoleListener(stream)
    listener.progress("sampling", 1, 8)
    listener.progress("sampling", 8, 8)
    listener.step(FULL)
    listener.close()
    listener.close()
    assert "sampling" in stream.getvalue()
    last = stream.getvalue().rstrip("\n").rpartition("\n")[2].rpartition("\r")[2]
    assert format_step(FULL) in last
    assert "sampling" not in last


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_text_cannot_drive_the_terminal_or_the_markup(stream: io.StringIO) -> None:
    ConsoleListener(stream).note("[bold]a[/bold] \x1b[2J\x07 end")
    assert "[bold]a[/bold]" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()


def test_a_warning_says_so_in_words() -> None:
    stream = Terminal()
    ConsoleListener(stream).warning("far from the reference")
    assert "warning: far from the reference" in stream.getvalue()


def test_no_colour_is_written_when_the_environment_asks_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    ConsoleListener(stream).warning("careful")
    assert stream.getvalue() == "warning: careful\n"


def test_a_reader_who_hangs_up_does_not_stop_the_run() -> None:
    class Closed(io.StringIO):
        attempts = 0

        def write(self, text: str, /) -> int:
            self.attempts += 1
            raise BrokenPipeError

    gone = Closed()
    listener = ConsoleListener(gone)
    listener.step(FULL)
    listener.step(FULL)
    listener.close()
    assert gone.attempts == 1, "after the first refusal nothing more is written"
    stream = io.StringIO()
    listener = ConsoleListener(stream)
    stream.close()
    listener.note("nobody reads this")
    listener.step(FULL)


def test_the_quiet_listener_takes_everything_and_says_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listener: Listener = QuietListener()
    listener.phase("a")
    listener.progress("b", 0, None)
    listener.step(FULL)
    listener.note("c")
    listener.warning("d")
    listener.close()
    assert capsys.readouterr() == ("", "")


def test_off_a_terminal_rich_is_not_even_imported() -> None:
    code = (
        "import io, sys; from headrace.observe.console import ConsoleListener as C\n"
        "listener = C(io.StringIO()); listener.note('x'); listener.progress('p', 0, 1)\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('rich', 'torch')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
