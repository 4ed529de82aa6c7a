"""`headrace simulate` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_support import headrace
from headrace.errors import Exit
from headrace.pipeline.simulation import simulate
from simulate_support import recipe, recorded, world

QUICK = ("--steps", "6", "--lag", "1", "--set", "play.groups=2", "--set", "play.group_size=2")


def test_schedules_are_compared_and_one_is_advised() -> None:
    shown = headrace("simulate", "quickstart", *QUICK, "--verifier-seconds", "14")
    assert shown.code == 0
    header, *rows = shown.out.split("\n\n")[0].splitlines()
    assert header.split()[:4] == ["SCHEDULE", "SAMPLES/S", "SPEED", "STEP"]
    assert [row.split("  ")[0] for row in rows] == ["synchronous", "lockstep, lag 1", "free, lag 1"]
    assert rows[0].split()[2] == "1.00x"
    assert float(rows[1].split()[4].rstrip("x")) > 1.3
    assert "--set play.max_lag=1" in shown.err
    assert "seconds are assumed" in shown.err


def test_json_holds_every_number_and_nothing_else_is_on_standard_output() -> None:
    made = headrace("simulate", *QUICK, "--schedule", "free", "--json").json
    assert [s["title"] for s in made["schedules"]] == ["synchronous", "free, lag 1"]
    for told in made["schedules"]:
        assert told["admitted"] == told["trained"] + told["held"] == 12
        assert set(told["queues"]) == {"queued", "playing", "to_judge", "judging", "ready"}
        assert sum(told["staleness"]["counts"].values()) > 0


def test_the_seconds_that_are_said_are_the_seconds_of_a_synchronous_step() -> None:
    told = headrace(
        *("simulate", *QUICK, "--json", "--schedule", "lockstep", "--verifier-tail", "1"),
        *("--play-seconds", "20", "--learn-seconds", "3", "--verifier-seconds", "7"),
        *("--length-tail", "1"),
    ).json
    assert told["schedules"][0]["step_mean"] == pytest.approx(30.0, rel=1e-6)


def test_a_run_brings_its_own_seconds(tmp_path: Path) -> None:
    plan = recipe(steps=6, verify={"workers": 64})
    directory = recorded(tmp_path, plan, world(), simulate(plan, world()))
    shown = headrace("simulate", directory.name, "--runs", str(tmp_path), *QUICK[:4], "--json")
    assert shown.code == 0
    assert shown.json["schedules"][0]["step_mean"] == pytest.approx(1.0 + 0.5 + 0.25, rel=1e-3)
    assert any("6 steps" in note for note in shown.json["notes"])
    changed = headrace(
        *("simulate", "latest", "--runs", str(tmp_path), *QUICK[:4], "--json"),
        *("--verifier-seconds", "2"),
    )
    assert changed.json["schedules"][0]["step_mean"] == pytest.approx(3.25, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--lag", "1,x"), "no list of whole numbers"),
        (("--lag", "99"), "0..64"),
        (("--faults", "1"), "always fails"),
        (("--play-seconds", "0"), "sampling takes time"),
        (("nonesuch",), "nonesuch"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_hint(
    arguments: tuple[str, ...], says: str
) -> None:
    refused = headrace("simulate", *arguments)
    assert refused.code == Exit.USAGE
    assert says in refused.err
    assert "hint:" in refused.err


def test_help_teaches_by_example() -> None:
    shown = headrace("simulate", "--help").out
    assert "headrace simulate latest" in shown
    assert "play.max_lag" in shown
