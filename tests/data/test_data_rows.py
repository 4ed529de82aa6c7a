"""Rows of data files: every container, places and hashes, and bad rows that stop nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_support import json_lines, question
from headrace.data.rows import Refusals, Refused, Row, read_rows
from headrace.errors import UsageError
from headrace.types import Json

ROWS: list[Json] = [question(1), {"text": "", "note": None}, {"messages": [], "ü": "√"}]


def _good(path: Path) -> list[Row]:
    rows = [row for row in read_rows(path) if isinstance(row, Row)]
    assert len(rows) == len(list(read_rows(path)))
    return rows


def _zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


# --- containers ----------------------------------------------------------------------------


def _written(directory: Path, name: str) -> Path:
    path = directory / name
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
    document = json.dumps(ROWS, indent=1, ensure_ascii=False).encode()
    content = document if ".json" in path.suffixes else lines
    if name.endswith(".gz"):
        content = gzip.compress(content)
    elif name.endswith(".zst"):
        content = _zstd(content)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst", "a.json.zst"],
)
def test_json_gives_the_same_rows_and_hashes_in_every_container(tmp_path: Path, name: str) -> None:
    reference = _good(_written(tmp_path, "reference.jsonl"))
    rows = _good(_written(tmp_path, name))
    assert [row.value for row in rows] == ROWS
    assert [row.digest for row in rows] == [row.digest for row in reference]
    assert [row.number for row in rows] == [0, 1, 2]
    assert len({row.digest for row in rows}) == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_the_offset_of_a_row_is_where_its_bytes_begin(tmp_path: Path, name: str) -> None:
    path = _written(tmp_path, name)
    content = b"\xef\xbb\xbf" + path.read_bytes()
    path.write_bytes(content)
    for row in _good(path):
        assert row.offset is not None
        text = content[row.offset :].decode()
        assert json.JSONDecoder().raw_decode(text)[0] == row.value


def test_a_byte_order_mark_crlf_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n   \r\n{"a": "x\\r\\ny"}\r\n\n')
    assert [row.value for row in _good(path)] == [{"a": 1}, {"a": "x\r\ny"}]


def test_json_values_one_after_another_are_rows_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n{"a":\n 2}{"a": 3}')
    assert [row.value["a"] for row in _good(path)] == [1, 2, 3]


def test_absent_null_and_empty_are_kept_apart(tmp_path: Path) -> None:
    rows = _good(json_lines(tmp_path / "a.jsonl", [{}, {"a": None}, {"a": ""}]))
    assert [row.value for row in rows] == [{}, {"a": None}, {"a": ""}]
    assert len({row.digest for row in rows}) == 3


def test_csv_cells_may_hold_quotes_and_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffprompt,completion\r\n"a ""b""\nc",d\r\n\r\nö,"x,y"\r\n'.encode())
    rows = _good(path)
    assert [row.value for row in rows] == [
        {"prompt": 'a "b"\nc', "completion": "d"},
        {"prompt": "ö", "completion": "x,y"},
    ]
    assert [row.offset for row in rows] == [22, 39]
    tabs = tmp_path / "a.tsv"
    tabs.write_text("p\tq\n1\t2,3\n")
    assert [row.value for row in _good(tabs)] == [{"p": "1", "q": "2,3"}]


def test_columns_with_null_first_and_with_mixed_chunks_are_read(tmp_path: Path) -> None:
    first = pa.table({"messages": pa.nulls(2000, pa.list_(pa.struct([("role", pa.string())])))})
    last = pa.table({"messages": [[{"role": "user"}]]}).cast(first.schema)
    table = pa.concat_tables([first, last])
    pq.write_table(table, tmp_path / "a.parquet")
    for name, opened in (("a.arrow", pa.ipc.new_file), ("b.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, opened(sink, table.schema) as writer:
            writer.write_table(table)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        rows = _good(tmp_path / name)
        assert len(rows) == 2001
        assert rows[0].value == {"messages": None}
        assert rows[2000].value == {"messages": [{"role": "user"}]}
        assert rows[2000].number == 2000
        assert rows[2000].columnar


def test_columns_may_hold_what_json_cannot(tmp_path: Path) -> None:
    table = pa.table(
        {"when": pa.array([1], pa.timestamp("s")), "raw": [b"\xff"], "x": [float("nan")]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert len(_good(tmp_path / "a.parquet")) == 1


# --- quarantine ----------------------------------------------------------------------------


def _read(path: Path) -> tuple[list[Json], list[Refused]]:
    values: list[Json] = []
    refused: list[Refused] = []
    for row in read_rows(path):
        if isinstance(row, Row):
            values.append(row.value)
        else:
            refused.append(row)
    return values, refused


def test_bad_lines_are_quarantined_with_reason_place_and_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad = b'{"a": "' + b"x" * 200
    lines = [b'{"a": 1}', bad, b"\xff\xfe{", b"[1]", b'{"a": "\\ud800"}', b'{"a": 2}', b'{"a"']
    path.write_bytes(b"\n".join(lines))
    values, refused = _read(path)
    assert values == [{"a": 1}, {"a": 2}]
    reasons = ["not JSON", "not UTF-8", "not an object", "not UTF-8", "not JSON"]
    assert [entry.reason for entry in refused] == reasons
    assert [entry.number for entry in refused] == [1, 2, 3, 4, 6]
    assert refused[0].offset == 9
    assert refused[0].excerpt == bad[:80].decode()
    assert all(entry.file == str(path) for entry in refused)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_hostile_json_is_refused_and_stops_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    deep = "[" * 100_000
    number = '{"a": ' + "9" * 10_000 + "}"
    path.write_text("\n".join(['{"a": 1}', '{"b": ' + deep, number, '{"a": 2}']))
    values, refused = _read(path)
    assert values == [{"a": 1}, {"a": 2}]
    assert {entry.reason for entry in refused} == {"not JSON"}


def test_a_document_cut_in_mid_string_keeps_all_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    text = json.dumps([question(number) for number in range(5)])
    path.write_text(text[: text.index("What is 4") + 6])
    values, refused = _read(path)
    assert values == [question(number) for number in range(4)]
    assert [entry.number for entry in refused] == [4]
    assert refused[0].excerpt.startswith('{"messages"')


def test_reading_goes_on_behind_a_broken_row_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    rows = [json.dumps(question(number)) for number in range(4)]
    rows[1] = rows[1].replace('"role": "user"', '"role": user')
    path.write_text("[" + ",\n".join(rows) + "]")
    values, refused = _read(path)
    assert values == [question(0), question(2), question(3)]
    assert len(refused) == 1


def test_a_packed_file_that_ends_too_early_keeps_what_was_unpacked(tmp_path: Path) -> None:
    content = "".join(json.dumps({"n": n, "x": "ab" * n}) + "\n" for n in range(2000)).encode()
    for name, packed in (("a.jsonl.gz", gzip.compress(content)), ("a.jsonl.zst", _zstd(content))):
        path = tmp_path / name
        path.write_bytes(packed[:-400])
        values, refused = _read(path)
        assert 100 < len(values) < 2000
        assert values == [{"n": n, "x": "ab" * n} for n in range(len(values))]
        assert refused[-1].reason == "the packed file is damaged"


def test_bad_lines_of_csv_are_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n1,2\n3\n4,5,6\n\xff,1\n7,8\n9,"cut off')
    values, refused = _read(path)
    assert values == [{"a": "1", "b": "2"}, {"a": "7", "b": "8"}]
    assert [entry.reason for entry in refused] == ["not CSV", "not CSV", "not UTF-8", "not CSV"]


def test_files_of_which_nothing_can_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        list(read_rows(tmp_path / "a.jsonl"))
    for name in ("a.bin", "a", "a.parquet.gz"):
        with pytest.raises(UsageError, match="no container"):
            list(read_rows(tmp_path / name))
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"ARROW1" + b"x" * 100)
        with pytest.raises(UsageError, match="is no"):
            list(read_rows(tmp_path / name))
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    with pytest.raises(UsageError, match="must name every column"):
        list(read_rows(tmp_path / "a.csv"))


def test_too_large_a_share_refused_lists_reasons_with_counts_and_examples() -> None:
    tally = Refusals("chat.jsonl")
    tally.accept()
    for number in range(5):
        tally.refuse(
            Refused(reason="not JSON", file="chat.jsonl", number=number, offset=7, excerpt='{"a')
        )
    tally.refuse(Refused(reason="unknown role", file="chat.jsonl", number=9, detail="narrator"))
    tally.check(0.9)
    with pytest.raises(UsageError) as raised:
        tally.check(0.8)
    said = str(raised.value)
    assert "6 of 7 rows are refused" in said
    assert "5 x not JSON (row 0, byte 7: '{\"a'" in said
    assert "1 x unknown role (row 9: narrator)" in said
    assert said.index("not JSON") < said.index("unknown role")
    assert said.count("byte 7") == 3
