"""SQL over a store, whoever wrote it; and exports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.errors import StorageError, UsageError
from headrace.store.codec import trajectory_from_json
from headrace.store.compaction import Retention
from headrace.store.ledger import Consumed
from headrace.store.query import run_query
from headrace.store.reuse import Kind, conversation, export
from headrace.store.trajectories import Judged, TrajectoryStore
from headrace.types import ImagePart, Json, Message, TextPart, ToolCall, ToolSpec, Trajectory
from store_support import bits, small_trajectory
from trajectories_support import NEWER, admitted, attempt, first_format, read, verdict


def asked(directory: Path, sql: str) -> list[list[Json]]:
    return run_query(directory, sql).rows


def half_sealed(directory: Path) -> TrajectoryStore:
    """Steps 1 and 2, of which the first is sealed; the first attempt is judged late."""
    store = TrajectoryStore(directory)
    for step in (1, 2):
        group = f"{step:06d}:0.0"
        store.append(admitted(group))
        store.append(attempt(group, 0))
        store.append(attempt(group, 1).judged(verdict(1.0)))
        store.append_wave(f"{step:06d}:1", [attempt(f"{step:06d}:1.0")])
        store.append(Consumed(step=step, version=step - 1, groups=(group,)))
        if step == 1:
            store.seal()
    store.append(Judged("000001:0.0/0", verdict(None)))
    store.append(Judged("000001:0.0/0", verdict(0.25)))
    store.append(Judged("000001:0.0/1", verdict(0.0, NEWER)))
    return store


# --- answers -------------------------------------------------------------------------------


def test_sealed_and_active_records_are_one(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    assert asked(tmp_path, "SELECT id, step, wave, score FROM trajectories ORDER BY seq") == [
        ["000001:0.0/0", 1, None, 0.25],
        ["000001:0.0/1", 1, None, 1.0],
        ["000001:1.0/0", 1, "000001:1", None],
        ["000002:0.0/0", 2, None, None],
        ["000002:0.0/1", 2, None, 1.0],
        ["000002:1.0/0", 2, "000002:1", None],
    ]
    said = "SELECT id, verifier_version, score, fault FROM verdicts ORDER BY seq"
    assert asked(tmp_path, said) == [
        ["000001:0.0/1", "1", 1.0, None],
        ["000002:0.0/1", "1", 1.0, None],
        ["000001:0.0/0", "1", None, "infrastructure"],
        ["000001:0.0/0", "1", 0.25, None],
        ["000001:0.0/1", "2", 0.0, None],
    ]
    assert asked(tmp_path, "SELECT group_id, size, domain FROM tasks ORDER BY seq") == [
        ["000001:0.0", 2, "arithmetic"],
        ["000002:0.0", 2, "arithmetic"],
    ]
    assert asked(tmp_path, "SELECT step, group_id, trained, void FROM consumed") == [
        [1, "000001:0.0", True, False],
        [2, "000002:0.0", True, False],
    ]
    joined = (
        "SELECT count(*) FROM trajectories JOIN consumed USING (group_id) WHERE trained AND solved"
    )
    assert asked(tmp_path, joined) == [[2]]


def test_the_step_is_that_of_consumption(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path) as store:
        store.append(attempt("17"))
        store.seal()
        store.append(attempt("18"))
        store.append(Consumed(step=4, version=3, groups=("17", "18"), reason="no spread"))
        store.append(attempt("000002:0.0"))
    assert asked(tmp_path, "SELECT group_id, step FROM trajectories ORDER BY seq") == [
        ["17", 4],
        ["18", 4],
        ["000002:0.0", 2],
    ]


def test_what_a_resume_took_back_is_void(tmp_path: Path) -> None:
    with half_sealed(tmp_path) as store:
        store.rewind_consumed(1)
    assert asked(tmp_path, "SELECT step, void FROM consumed") == [[1, False], [2, True]]


def test_values_come_as_json_and_rows_are_limited(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    found = run_query(
        tmp_path,
        "SELECT ids, parts, timings, DATE '2026-01-02', 1e400::DOUBLE, 'nan'::DOUBLE, "
        "'ab'::BLOB, 12.5::DECIMAL(4, 1) FROM trajectories WHERE attempt = 1 ORDER BY seq",
        limit=1,
    )
    assert found.truncated
    json.dumps(found.rows, allow_nan=False)
    (row,) = found.rows
    made = attempt("000001:0.0", 1)
    assert row[0] == [item for turn in made.turns for item in turn.ids.tolist()]
    assert row[1] == [{"name": "answer", "value": 1.0, "weight": 1.0}]
    assert row[2:] == [{"play": 0.1}, "2026-01-02", "inf", "nan", "6162", "12.5"]
    assert found.columns[:3] == ["ids", "parts", "timings"]
    whole = run_query(tmp_path, "SELECT 1 FROM trajectories", limit=6)
    assert (len(whole.rows), whole.truncated) == (6, False)


def test_an_empty_store_and_one_of_the_first_format_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert asked(tmp_path / "empty", "SELECT count(*) FROM trajectories") == [[0]]
    first_format(tmp_path / "old", {"000001:0": [small_trajectory(1)]})
    answer = asked(tmp_path / "old", "SELECT id, wave, score FROM trajectories")
    assert answer == [["g1/1", "000001:0", 1.0]]


def test_the_columns_can_be_asked_for(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    columns = [row[0] for row in asked(tmp_path, "DESCRIBE trajectories")]
    assert {"id", "score", "completion", "ids", "record"} <= set(columns)


# --- who asks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_blob('{secret}')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM parquet_scan('{folder}/t/sealed/part-00000.0.tasks.parquet')",
        "SELECT * FROM secret",
        "SELECT getenv('HOME')",
        "COPY trajectories TO '{folder}/out.csv'",
        "ATTACH '{folder}/out.db'",
        "EXPORT DATABASE '{folder}/out'",
        "INSTALL httpfs",
        "LOAD '{secret}'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA enable_external_access",
        "CREATE TABLE mine AS SELECT 1",
        "DROP VIEW trajectories",
        "DELETE FROM trajectories",
        "SELECT 1; SELECT 2",
        "",
        "SELECT nonsense FROM trajectories",
        "SELEC 1",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM arrow_scan()",
        "SELECT * FROM python_arrow_scan()",
        "SELECT * FROM pandas_scan()",
        "SELECT * FROM arrow_scan_dumb(1, 2, 3)",
        "SELECT * FROM python_map_function((SELECT 1))",
        "SELECT error('boom')",
    ],
)
def test_a_query_may_only_read_and_only_the_store(tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret"  # also a name of Python's that must not be found
    secret.write_text("the answer")
    with half_sealed(tmp_path / "t"):
        pass
    with pytest.raises(UsageError):
        run_query(tmp_path / "t", sql.format(secret=secret, folder=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "t"]


def test_a_query_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"took more than 0\.3 s"):
        run_query(
            tmp_path,
            "SELECT sum(a.range * b.range) FROM range(10000000) a, range(100000) b",
            seconds=0.3,
        )
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_a_query_that_wants_all_memory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="failed"):
        run_query(tmp_path, "SELECT list(range) FROM range(2000000000)", seconds=20)


def test_a_damaged_sealed_file_is_not_asked(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    path = tmp_path / "sealed" / "part-00000.0.attempts.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="does not match its SHA-256"):
        run_query(tmp_path, "SELECT count(*) FROM trajectories")


# --- exports -------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def exported(
    directory: Path, kind: Kind, name: str = "out.jsonl", where: str = "true"
) -> tuple[Path, int, int]:
    told = export(read(directory), directory / name, kind=kind, where=where)
    return told.path, told.rows, told.skipped


def test_solved_attempts_become_conversations(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    path, rows, skipped = exported(tmp_path, "sft", where="solved AND step = 1")
    assert (rows, skipped) == (1, 0)
    made = attempt("000001:0.0", 1)
    (row,) = lines(path)
    assert row == {
        "id": made.id,
        "task_id": made.task.id,
        "domain": "arithmetic",
        "score": 1.0,
        "messages": [
            {"role": "user", "content": made.task.messages[0].text},
            {"role": "assistant", "content": made.turns[1].text},
        ],
    }
    assert not list(tmp_path.glob(".tmp-*"))


def test_replayed_attempts_are_the_stored_ones(tmp_path: Path) -> None:
    with half_sealed(tmp_path) as store:
        expected = list(store.trajectories())
    path, rows, _ = exported(tmp_path, "replay")
    assert rows == 6
    assert [bits(trajectory_from_json(row["trajectory"])) for row in lines(path)] == [
        bits(trajectory) for trajectory in expected
    ]
    again = export(read(tmp_path), tmp_path / "new.jsonl", kind="replay", verifier=NEWER)
    scores = {row["id"]: row["score"] for row in lines(again.path)}
    assert scores["000001:0.0/1"] == 0.0
    assert scores["000002:0.0/1"] is None


def test_distillation_has_the_teachers_tokens(tmp_path: Path) -> None:
    with half_sealed(tmp_path) as store:
        store.seal()
        store.compact(Retention(arrays_from=2))
    path, rows, skipped = exported(tmp_path, "distill", where="attempt = 1")
    assert (rows, skipped) == (1, 1), "arrays of step 1 were dropped"
    (row,) = lines(path)
    prompt, answer = attempt("000002:0.0", 1).turns
    assert row["ids"] == [*prompt.ids.tolist(), *answer.ids.tolist()]
    assert row["sampled"] == [False] * 5 + [True] * 3
    assert row["logps"] == answer.logps.tolist()
    assert row["prompt"] == [{"role": "user", "content": prompt.text}]
    assert row["completion"] == [{"role": "assistant", "content": answer.text}]
    assert exported(tmp_path, "sft", where="attempt = 1")[1:] == (2, 0), "texts are still there"


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    kinds: tuple[Kind, ...] = ("sft", "distill", "replay")
    for kind in kinds:
        path, rows, _ = exported(tmp_path, kind)
        table, count, _ = exported(tmp_path, kind, f"{kind}.parquet")
        assert count == rows == 6
        found = pq.read_table(table).to_pylist()
        assert [row["id"] for row in found] == [row["id"] for row in lines(path)]
        if kind == "sft":
            said = [[m["content"] for m in row["messages"]] for row in found]
            assert said == [[m["content"] for m in row["messages"]] for row in lines(path)]


def test_a_condition_can_only_choose(tmp_path: Path) -> None:
    with half_sealed(tmp_path):
        pass
    for where in (
        "true); COPY trajectories TO 'x",
        "nonsense = 1",
        "true) UNION SELECT content FROM read_text('/etc/hostname') WHERE (true",
        "SELECT",
    ):
        with pytest.raises(UsageError):
            exported(tmp_path, "sft", where=where)
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(UsageError, match="no export"):
        exported(tmp_path, "dpo")  # pyright: ignore[reportArgumentType]


def with_tools() -> Trajectory:
    """A question with an image, two calls of which one is answered by a turn, and an answer."""
    made = attempt("g")
    prompt, answer = made.turns
    calls = (
        ToolCall("c1", "add", '{"a": 1}', {"a": 1}),
        ToolCall("c2", "add", "{broken", None, result="cannot read the arguments"),
    )
    called = replace(answer, text="let me see", tool_calls=calls)
    told = replace(prompt, role="tool", text="3")
    task = replace(
        made.task,
        messages=(Message("user", (TextPart("what?"), ImagePart("ab12"))),),
        tools=(ToolSpec("add", "adds", {"type": "object"}),),
    )
    return replace(made, task=task, turns=(prompt, called, told, answer))


def test_calls_and_results_become_messages_that_belong_together() -> None:
    made = with_tools()
    assert conversation(made) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what?"},
                {"type": "image", "sha256": "ab12", "media_type": "image/png"},
            ],
        },
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1}'},
                },
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "add", "arguments": "{broken"},
                },
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "tool", "content": "cannot read the arguments", "tool_call_id": "c2"},
        {"role": "assistant", "content": made.turns[3].text},
    ]


def test_tools_are_exported_and_what_has_no_last_word_is_not(tmp_path: Path) -> None:
    made = with_tools()
    with TrajectoryStore(tmp_path) as store:
        store.append(made)
        store.append(replace(made, attempt=1, turns=made.turns[:3]))
        store.append(replace(made, attempt=2, turns=made.turns[:1]))
    path, rows, skipped = exported(tmp_path, "sft")
    assert (rows, skipped) == (1, 2)
    (row,) = lines(path)
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    assert row["tools"] == [{"type": "function", "function": function}]
    table, count, _ = exported(tmp_path, "sft", "out.parquet")
    (flat,) = pq.read_table(table).to_pylist()
    assert count == 1
    assert json.loads(flat["tools"]) == row["tools"]
    assert json.loads(flat["messages"][1]["tool_calls"]) == row["messages"][1]["tool_calls"]


def test_a_failed_export_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with half_sealed(tmp_path):
        pass
    (tmp_path / "out.jsonl").write_text("old")

    def full(self: object, *_: object) -> None:
        raise OSError(28, "No space left on device")

    refuse: Callable[..., None] = full
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match="no space left"):
        exported(tmp_path, "sft")
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert not list(tmp_path.glob(".tmp-*"))
