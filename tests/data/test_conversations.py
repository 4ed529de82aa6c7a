"""Rows as conversations and preferences: each shape, each spelling, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.data.conversations import Conversation, PreferenceRow, Unfit, understand
from headrace.types import Json

TURNS = [("user", "2+2?"), ("assistant", "4")]


def _said(value: dict[str, Json]) -> list[tuple[str, str]]:
    meaning = understand(value)
    assert isinstance(meaning, Conversation)
    return [(message.role, message.text) for message in meaning.messages]


def _chat(*messages: dict[str, Json]) -> dict[str, Json]:
    return {"messages": list(messages)}


def _from(who: str, text: str) -> dict[str, Json]:
    return {"from": who, "value": text}


def _spoken(who: str, text: str) -> dict[str, Json]:
    return {"speaker": who, "text": text}


def _refusal(value: dict[str, Json]) -> str:
    with pytest.raises(Unfit) as raised:
        understand(value)
    return raised.value.reason


USER: dict[str, Json] = {"role": "user", "content": "2+2?"}
BOT: dict[str, Json] = {"role": "assistant", "content": "4"}
SILENT = "an assistant message that says nothing"
MEDIA = "images, audio and video are not rendered"


# --- shapes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (_chat(USER, BOT), "messages"),
        ({"conversations": [_from("human", "2+2?"), _from("gpt", "4")]}, "sharegpt"),
        ({"conversations": [_from("user", "2+2?"), _from("bard", "4")]}, "sharegpt"),
        ({"dialog": [_spoken("Human", "2+2?"), _spoken("bot", "4")]}, "messages"),
        ({"data": ["2+2?", "4"]}, "messages"),
        ({"messages": json.dumps([USER, BOT])}, "messages"),
        ({"instruction": "2+2?", "input": "", "output": "4"}, "alpaca"),
        ({"prompt": "2+2?", "completion": "4"}, "prompt-completion"),
        ({"prompt": [USER], "completion": [BOT]}, "prompt-completion"),
        ({"prompt": [USER], "completion": BOT}, "prompt-completion"),
        ({"question": "2+2?", "answer": "4"}, "question-answer"),
        ({"id": 7, "prompt_id": "x", "prompt": "other", "messages": [USER, BOT]}, "messages"),
    ],
)  # fmt: skip
def test_every_shape_becomes_the_same_conversation(row: dict[str, Json], shape: str) -> None:
    meaning = understand(row)
    assert isinstance(meaning, Conversation)
    assert _said(row) == TURNS
    assert meaning.shape == shape
    assert meaning.key == understand(_chat(USER, BOT)).key


def test_an_alpaca_row_has_its_input_on_a_line_and_its_history_before() -> None:
    row: dict[str, Json] = {
        "system": "Be brief.",
        "history": [["hi", "hello"]],
        "instruction": "Add.",
        "input": "2 2",
        "output": "4",
    }
    assert _said(row) == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "Add.\n2 2"),
        ("assistant", "4"),
    ]


def test_a_system_message_wins_over_the_column() -> None:
    own: Json = {"role": "developer", "content": "mine"}
    assert _said({**_chat(own, USER, BOT), "system": "other"})[0] == ("system", "mine")
    assert _said({**_chat(USER, BOT), "system": "other"})[0] == ("system", "other")
    later = _chat(USER, own, BOT)
    assert _said(later)[1] == ("system", "mine")


def test_a_leading_assistant_turn_and_a_trailing_user_turn_are_kept() -> None:
    assert _said(_chat(BOT, USER, BOT))[0] == ("assistant", "4")
    assert _said(_chat(BOT, USER))[-1] == ("user", "2+2?")


@pytest.mark.parametrize("number", [0, 1])
def test_rows_of_one_file_are_understood_one_by_one(number: int) -> None:
    rows = [_chat(USER, BOT), {"instruction": "2+2?", "output": "4"}]
    assert _said(rows[number]) == TURNS


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (_chat({"role": "narrator", "content": "x"}), "unknown role"),
        (_chat({"content": "x"}), "a message without a role"),
        (_chat(), "no turns"),
        ({"conversations": []}, "no turns"),
        (_chat(USER, {"role": "assistant", "content": " "}), SILENT),
        (_chat(USER, {"role": "assistant", "content": None}), SILENT),
        ({"prompt": "2+2?"}, "a prompt without an answer"),
        ({"text": "Once upon a time"}, "no known shape"),
        ({"input_ids": [1, 2], "labels": [1, 2]}, "token ids of an unknown tokenizer"),
        ({**_chat(USER, BOT), "images": ["a.png"]}, MEDIA),
        (_chat({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}), MEDIA),
        (_chat({"role": "user", "content": 5}), "content that is no text"),
        ({"messages": [5]}, "a message that is no object"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_refused_with_a_reason(
    row: dict[str, Json], reason: str
) -> None:
    assert _refusal(row) == reason


# --- nulls, parts, reasoning ---------------------------------------------------------------


def test_nulls_that_columns_fill_in_mean_nothing() -> None:
    filled: dict[str, Json] = {
        "messages": [
            {"role": "user", "content": "2+2?", "tool_calls": None, "from": None, "train": None},
            {"role": "assistant", "content": "4", "reasoning_content": None, "name": None},
        ],
        "tools": float("nan"),
        "chosen_by": None,
    }
    meaning = understand(filled, columnar=True)
    assert isinstance(meaning, Conversation)
    assert meaning.key == understand(_chat(USER, BOT)).key
    assert meaning.messages[1].reasoning is None
    assert meaning.tools == ()


def test_text_parts_are_joined_and_thinking_parts_are_reasoning() -> None:
    parts: Json = [
        {"type": "thinking", "thinking": "two twice"},
        {"type": "text", "text": "It is "},
        {"type": "output_text", "text": "4"},
    ]
    meaning = understand(_chat(USER, {"role": "assistant", "content": parts}))
    assert isinstance(meaning, Conversation)
    assert (meaning.messages[1].text, meaning.messages[1].reasoning) == ("It is 4", "two twice")


@pytest.mark.parametrize(
    "written",
    [
        {"content": "4", "reasoning_content": "two twice"},
        {"content": "4", "reasoning": "two twice"},
        {"content": "4", "thinking": "two twice"},
        {"content": "<think>\ntwo twice\n</think>\n\n4"},
        {"content": "two twice\n</think>\n\n4"},
        {"content": "<|begin_of_thought|>two twice<|end_of_thought|>\n4"},
        {"content": "<|begin_of_thought|>two twice<|end_of_thought|>\n"
         "<|begin_of_solution|>4<|end_of_solution|>"},
    ],
)  # fmt: skip
def test_reasoning_in_every_spelling_is_set_apart(written: dict[str, Json]) -> None:
    meaning = understand(_chat(USER, {"role": "assistant", **written}))
    assert isinstance(meaning, Conversation)
    message = meaning.messages[1]
    assert (message.text, message.reasoning) == ("4", "two twice")
    assert message.inline in (None, written["content"])


@pytest.mark.parametrize("text", ["<think> about it", "I said <think>x</think>", "a </think"])
def test_tags_that_enclose_no_reasoning_stay_text(text: str) -> None:
    assert _said(_chat(USER, {"role": "assistant", "content": text}))[1] == ("assistant", text)


# --- training flags ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "train"),
    [
        ({"train": False}, False),
        ({"training": True}, True),
        ({"weight": 0}, False),
        ({"weight": 1.0}, True),
        ({"loss_mask": 0}, False),
        ({"loss": True}, True),
        ({}, None),
        ({"content": [{"type": "text", "text": "4", "train": False}]}, False),
    ],
)
def test_training_flags_are_read(flag: dict[str, Json], train: bool | None) -> None:
    meaning = understand(_chat(USER, {**BOT, **flag}))
    assert isinstance(meaning, Conversation)
    assert meaning.messages[1].train is train


def test_flags_that_say_neither_yes_nor_no_are_refused() -> None:
    neither = "a training flag that is neither yes nor no"
    assert _refusal(_chat(USER, {**BOT, "weight": 0.5})) == neither
    assert _refusal(_chat(USER, {**BOT, "train": "no"})) == neither
    detail = [{"begin_offset": 0, "end_offset": 1, "train": True}]
    assert "pieces" in _refusal(_chat(USER, {**BOT, "train_detail": detail}))
    parts = [{"type": "text", "text": "4", "train": True}, {"type": "text", "text": "5"}]
    assert "different training flags" in _refusal(_chat(USER, {**BOT, "content": parts}))


# --- tools ---------------------------------------------------------------------------------

SPEC: dict[str, Json] = {"name": "add", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    "tools",
    [
        [SPEC],
        SPEC,
        [{"type": "function", "function": SPEC}],
        '[{"name": "add", "parameters": {"type": "object"}}]',
        ['{"name": "add", "parameters": {"type": "object"}}'],
    ],
)
def test_tools_in_every_spelling_are_function_objects(tools: Json) -> None:
    meaning = understand({**_chat(USER, BOT), "tools": tools})
    assert meaning.tools == ({"type": "function", "function": SPEC},)


@pytest.mark.parametrize("tools", [None, "", "null", "NaN", float("nan"), [], "[]"])
def test_no_tools_in_every_spelling(tools: Json) -> None:
    assert understand({**_chat(USER, BOT), "tools": tools}).tools == ()


def _calling(arguments: Json, **more: Json) -> dict[str, Json]:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, **more}]}


@pytest.mark.parametrize("arguments", [{"a": 2}, '{"a": 2}', '"{\\"a\\": 2}"'])
def test_arguments_are_an_object_and_the_text_as_written(arguments: Json) -> None:
    meaning = understand(_chat(USER, _calling(arguments), {"role": "tool", "content": "4"}, BOT))
    assert isinstance(meaning, Conversation)
    message = meaning.messages[1]
    assert message.text == ""
    assert message.calls[0].arguments == {"a": 2}
    assert message.calls[0].raw == (arguments if isinstance(arguments, str) else '{"a": 2}')
    result = meaning.messages[2]
    assert (result.call_id, result.name) == ("c1", "add")


def test_arguments_that_are_no_json_stay_as_they_were_written() -> None:
    meaning = understand(_chat(USER, _calling("a = 2")))
    assert isinstance(meaning, Conversation)
    assert meaning.messages[1].calls[0].arguments is None
    assert meaning.messages[1].calls[0].raw == "a = 2"


def test_nulls_in_arguments_are_meant_in_json_and_filling_in_columns() -> None:
    row = _chat(USER, _calling({"a": 2, "b": None}))
    for columnar, expected in ((False, {"a": 2, "b": None}), (True, {"a": 2})):
        meaning = understand(row, columnar=columnar)
        assert isinstance(meaning, Conversation)
        assert meaning.messages[1].calls[0].arguments == expected


def test_the_older_spellings_of_calls_are_read() -> None:
    spoken = [
        {"from": "human", "value": "2+2?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "4"},
    ]
    legacy = {"role": "assistant", "function_call": {"name": "add", "arguments": '{"a": 2}'}}
    for row in (
        {"conversations": spoken},
        _chat(USER, legacy, {"role": "function", "name": "add", "content": "4"}, BOT),
    ):
        meaning = understand(row)
        assert isinstance(meaning, Conversation)
        assert [m.role for m in meaning.messages] == ["user", "assistant", "tool", "assistant"]
        assert meaning.messages[1].calls[0].arguments == {"a": 2}


def test_parallel_calls_are_paired_by_id_and_a_stray_result_is_refused() -> None:
    calls: list[Any] = [_calling({})["tool_calls"][0], _calling({}, id="c2")["tool_calls"][0]]
    asking: dict[str, Json] = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [{"role": "tool", "content": "x", "tool_call_id": id} for id in ("c2", "c1")]
    meaning = understand(_chat(USER, asking, *results, BOT))
    assert isinstance(meaning, Conversation)
    assert [m.call_id for m in meaning.messages if m.role == "tool"] == ["c2", "c1"]
    stray = {"role": "tool", "content": "x", "tool_call_id": "c9"}
    assert _refusal(_chat(USER, asking, stray)) == "a tool result without its call"


# --- preferences and labels ----------------------------------------------------------------

WORSE: dict[str, Json] = {"role": "assistant", "content": "5"}
HUMAN = "\n\nHuman: 2+2?\n\nAssistant:"


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, "prompt"),
        ({"question": "2+2?", "chosen": "4", "rejected": "5"}, "prompt"),
        ({"prompt": [USER], "chosen": [BOT], "rejected": [WORSE]}, "prompt"),
        ({"conversations": [_from("human", "2+2?")],
          "chosen": _from("gpt", "4"), "rejected": _from("gpt", "5")}, "prompt"),
        ({"instruction": "2+2?", "input": "", "chosen": "4", "rejected": "5"}, "prompt"),
        ({"chosen": [USER, BOT], "rejected": [USER, WORSE]}, "implicit prompt"),
        ({"chosen": f"{HUMAN} 4", "rejected": f"{HUMAN} 5"}, "implicit prompt"),
        ({"prompt": "2+2?", "chosen": [USER, BOT], "rejected": [USER, WORSE],
          "messages": [USER, BOT]}, "full lists"),
    ],
)  # fmt: skip
def test_every_shape_of_preference_is_the_same_pair(row: dict[str, Json], shape: str) -> None:
    meaning = understand(row)
    assert isinstance(meaning, PreferenceRow)
    assert [(m.role, m.text) for m in meaning.prompt] == [("user", "2+2?")]
    assert [(m.role, m.text) for m in meaning.chosen] == [("assistant", "4")]
    assert [(m.role, m.text) for m in meaning.rejected] == [("assistant", "5")]
    assert meaning.shape == f"preference, {shape}"
    assert meaning.margin == 0.0


def test_a_prompt_is_not_doubled_where_full_lists_bring_a_system_message() -> None:
    system: dict[str, Json] = {"role": "system", "content": "Be brief."}
    row: dict[str, Json] = {
        "prompt": "2+2?",
        "chosen": [system, USER, BOT],
        "rejected": [system, USER, WORSE],
    }
    meaning = understand(row)
    assert isinstance(meaning, PreferenceRow)
    assert [m.role for m in meaning.prompt] == ["system", "user"]


def test_sides_that_part_late_share_all_that_they_begin_with() -> None:
    more: dict[str, Json] = {"role": "user", "content": "Sure?"}
    row: dict[str, Json] = {"chosen": [USER, BOT, more, BOT], "rejected": [USER, BOT, more, WORSE]}
    meaning = understand(row)
    assert isinstance(meaning, PreferenceRow)
    assert len(meaning.prompt) == 3
    assert len(meaning.chosen) == len(meaning.rejected) == 1


PAIR: dict[str, Json] = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
NO_ANSWER = "a side that is not the assistant's answer"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**PAIR, "rejected": None}, "a side is missing"),
        ({**PAIR, "chosen": ""}, "a side is missing"),
        ({"prompt": "2+2?", "chosen": "4"}, "a side is missing"),
        ({**PAIR, "rejected": "4"}, "both sides say the same"),
        ({**PAIR, "score_chosen": 3, "score_rejected": 3.0}, "a tie"),
        ({**PAIR, "margin": 0}, "a tie"),
        ({**PAIR, "margin": -1}, "the rejected side has the higher score"),
        ({**PAIR, "margin": "much"}, "a margin that is no number"),
        ({**PAIR, "margin": True}, "a margin that is no number"),
        ({"chosen": "4", "rejected": "5"}, "a preference without a prompt"),
        ({"chosen": [USER], "rejected": [USER, WORSE]}, NO_ANSWER),
        ({**PAIR, "rejected": "  "}, SILENT),
    ],
)  # fmt: skip
def test_pairs_without_a_preference_are_refused(row: dict[str, Json], reason: str) -> None:
    assert _refusal(row) == reason


@pytest.mark.parametrize(
    "more",
    [
        {"margin": 1.5},
        {"score_chosen": 4.5, "score_rejected": 3},
        {"chosen_score": "2.5", "rejected_score": 1},
        {"chosen-rating": 2, "rejected-rating": 0.5},
    ],
)
def test_margins_are_read_or_computed_from_scores(more: dict[str, Json]) -> None:
    meaning = understand({**PAIR, **more})
    assert isinstance(meaning, PreferenceRow)
    assert meaning.margin == 1.5


@pytest.mark.parametrize(
    ("label", "good"),
    [
        (True, True),
        (1, True),
        ("true", True),
        ("False", False),
        (0, False),
        (-1, False),
        (None, None),
    ],
)
def test_labels_in_every_spelling(label: Json, good: bool | None) -> None:
    meaning = understand({"prompt": "2+2?", "completion": "4", "label": label})
    assert isinstance(meaning, Conversation)
    assert meaning.label is good


def test_a_label_that_says_neither_good_nor_bad_is_refused() -> None:
    reason = "a label that is neither good nor bad"
    assert _refusal({**_chat(USER, BOT), "label": "maths"}) == reason
