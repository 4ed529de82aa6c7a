from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from answers_support import attempt, tricks
from headrace.protocols import Domain, Pack
from headrace.types import Json, Task
from headrace.verify.kinds import Referenced
from headrace_extract import TIERS, Records, pack

RECORDS = pack.open("extract/records")
EVERY_TIER = range(len(TIERS))


def strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def tasks(tier: int, count: int) -> list[Task]:
    return [RECORDS.task(tier, index) for index in range(count)]


def test_the_pack_offers_its_domain() -> None:
    assert isinstance(pack, Pack)
    assert isinstance(RECORDS, Domain)
    assert isinstance(RECORDS, Referenced)
    assert pack.names() == ["extract/records"]
    assert RECORDS.tiers == 5
    with pytest.raises(KeyError):
        pack.open("extract/other")


@pytest.mark.parametrize("tier", EVERY_TIER)
def test_a_tier_has_hundreds_of_problems_on_both_sides(tier: int) -> None:
    made = tasks(tier, 400)
    assert len({task.problem for task in made}) >= 300
    heldout = sum(task.split == "heldout" for task in made)
    assert 40 <= heldout <= 120
    assert Records().task(tier, 7) == made[7]
    assert RECORDS.task(tier, 2**63 - 1).id


@pytest.mark.parametrize("tier", EVERY_TIER)
def test_references_get_full_marks_and_careless_readings_do_not(tier: int) -> None:
    for task in tasks(tier, 40):
        judged = RECORDS.verifier.judge(task, RECORDS.reference(task))
        assert judged.solved, judged.evidence
        for text in RECORDS.wrong(task):
            score = RECORDS.verifier.judge(task, text).score
            assert score is not None
            assert score < 0.999, text
        for text in ("", task.messages[0].text, "{}", json.dumps(TIERS[tier].schema)):
            assert RECORDS.verifier.judge(task, text).score == 0


@pytest.mark.parametrize("tier", EVERY_TIER)
def test_no_trick_and_no_other_record_pays(tier: int) -> None:
    made = tasks(tier, 12)
    for task in made:
        for name in tricks("structured"):
            text = attempt("structured", name, task, RECORDS.verifier)
            assert RECORDS.verifier.judge(task, text).score == 0, name
        for other in made:
            if other.problem != task.problem:
                assert RECORDS.verifier.judge(task, RECORDS.reference(other)).score == 0


@pytest.mark.parametrize("tier", EVERY_TIER)
def test_records_match_the_schema_that_the_prompt_states(tier: int) -> None:
    validator = Draft202012Validator(TIERS[tier].schema, format_checker=FormatChecker())
    for task in tasks(tier, 40):
        validator.validate(task.answer["expected"])
        named = json.dumps(TIERS[tier].schema) in task.messages[0].text
        assert named or all(
            f'"{key}" (' in task.messages[0].text for key in task.answer["expected"]
        )


@pytest.mark.parametrize("tier", EVERY_TIER)
def test_every_string_to_be_read_is_in_the_text(tier: int) -> None:
    for task in tasks(tier, 40):
        text = task.messages[0].text.rpartition("\nText: ")[2]
        for value in strings(task.answer["expected"]):
            assert value in text or re.fullmatch(r"20\d\d-\d\d-\d\d", value), (value, text)


def test_examples_hold_nothing_that_is_asked_for() -> None:
    for tier, rung in enumerate(TIERS):
        for _, example in rung.examples:
            for task in tasks(tier, 100):
                assert not set(task.answer["expected"].values()) & set(example.values())


def test_units_dates_and_corrections_of_the_last_tier() -> None:
    for task in tasks(4, 60):
        text = task.messages[0].text.rpartition("\nText: ")[2]
        record, decoy = task.answer["expected"], task.lineage["decoy"]
        year, month, day = record["date"].split("-")
        written = (f"{int(day)} ", f" {int(day)}, {year}", f"{day}.{month}.{year}")
        assert any(form in text for form in written)
        assert (record["phone"] is None) == (re.search(r"\d{3}-\d{4}", text) is None)
        assert len(decoy["lines"]) == len(record["lines"]) + 1
        cancelled = [line["item"] for line in decoy["lines"] if line not in record["lines"]]
        assert f"leave out the {cancelled[0]}" in text
        for line in record["lines"]:
            grams, cents = f"{line['kg'] * 1000:g} g", f"{line['price'] * 100:.0f} cents"
            assert f"{line['kg']:g} kg of {line['item']}" in text or grams in text
            assert f"{line['price']:.2f}" in text or cents in text
