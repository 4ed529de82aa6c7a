"""Where an answer is looked for: one place, the last one, never in a thought."""

from __future__ import annotations

from headrace.verify.answers import boxed, fences, last_fence, tagged, without_thinking


def test_the_last_closed_fence_of_a_language_counts() -> None:
    text = "```python\na = 1\n```\nthen\n```PY extra\nb = 2\n```\n```\nplain\n```\n```python\nopen"
    assert last_fence(text, "python", "py") == "b = 2\n"
    assert last_fence(text) == "plain\n"
    assert [fence.closed for fence in fences(text)] == [True, True, True, False]


def test_a_fence_ends_with_its_own_mark_only() -> None:
    assert last_fence("````\n```\ninner\n```\n````") == "```\ninner\n```\n"
    assert last_fence("~~~sh\n```\n~~~", "sh") == "```\n"
    assert last_fence("no fence at all") is None
    assert fences("```python\n")[0].closed is False


def test_an_answer_inside_a_thought_is_none() -> None:
    assert without_thinking("a <think>7</think> b") == " b"
    assert without_thinking("<think>7") == ""
    assert without_thinking("</think> x <think> y") == ""
    assert without_thinking("plain") == "plain"


def test_the_last_complete_pair_of_tags_counts() -> None:
    assert tagged("<answer>1</answer> <answer>2</answer> <answer>3") == "2"
    assert tagged("<answer>1") is None
    assert tagged("</answer><answer>") is None


def test_a_box_needs_balanced_braces() -> None:
    assert boxed(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert boxed(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert boxed(r"\boxed{1") is None
