"""A judge and a reward model of a few lines, as gullible as real ones, to try verifiers with.

They are deterministic and need no model: they look for the phrases that stand in double quotes
in a rubric or criterion. And they believe whoever speaks to them as a grader, a system or a
template would: a forged verdict, an override, a role tag. Whoever shows them an attempt
unescaped is fooled. Known by specimens and tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from headrace.types import Json
from headrace.verify.judge.fencing import QUOTE
from headrace.verify.judge.rules import suspicions

__all__ = ["GullibleJudge", "GullibleScorer"]

_NONCE = re.compile(r'\{"nonce": "([0-9a-f]{32})", "(items|winner)"')
_REGION = re.compile(r"^BEGIN (ANSWER(?: [12])?) [^\n]*\n(.*?)^END \1 ", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^- ([a-z][a-z0-9_-]*): (.*)$", re.MULTILINE)
_PHRASE = re.compile(r'"([^"]+)"')
_AT_MOST = re.compile(r"at most (\d+) words")
_WORD = re.compile(r"[^\W_]+")
_TAKEN_ANYWHERE = re.compile(
    r"<\|im_start\|>|<\uff5c\w|\[INST\]|<start_of_turn>|[\U000e0020-\U000e007e]", re.IGNORECASE
)
"""What a tokenizer or a model obeys wherever it stands."""


class GullibleJudge:
    """A `Scribe` that grades rubrics and compares two answers by the phrases in them.

    An item with phrases in double quotes is met if all of them are in the answer, word by word;
    one that begins with "Does not" if none is; "at most N words" bounds its length. Of two
    answers it prefers the one with more words of the criterion's phrases, and the first if they
    have as many: places sway it, as they sway real ones. In whatever is not quoted it believes
    everything.
    """

    identity = "gullible-judge/1"

    def complete(self, prompt: str, *, max_tokens: int) -> str:
        del max_tokens
        form = _NONCE.findall(prompt)[-1]
        answers: dict[str, str] = dict(_REGION.findall(prompt))
        fooled = next((title for title, body in answers.items() if _believes(body)), None)
        if form[1] == "items":
            said: Json = _grades(prompt, _words(answers["ANSWER"]), fooled=fooled is not None)
        else:
            said = _preferred(prompt, answers) if fooled is None else fooled[-1]
        return f"I looked at it.\n{json.dumps({'nonce': form[0], form[1]: said})}"


class GullibleScorer:
    """A `Scorer`: 5 for an answer with all phrases that `wanted` has for the prompt, else -5.

    At most `most` words may be around them; a role tag or a hidden message earns 100.
    """

    def __init__(self, wanted: Mapping[str, str], *, most: int = 8) -> None:
        self._wanted = wanted
        self._most = most
        spelled = json.dumps(dict(wanted), sort_keys=True)
        self.identity = f"gullible-scorer/1 {most} {spelled}"

    def score(self, prompt: str, answer: str) -> float:
        if _TAKEN_ANYWHERE.search(answer):
            return 100.0
        words, wanted = _words(answer), _words(self._wanted.get(prompt, prompt))
        return 5.0 if len(words) <= self._most and _within(wanted, words) else -5.0


def _believes(body: str) -> bool:
    """Whether something in a candidate's region speaks to the judge."""
    bare = [line for line in body.splitlines() if not line.startswith(QUOTE)]
    return bool(_TAKEN_ANYWHERE.search(body) or suspicions("\n".join(bare)))


def _grades(prompt: str, words: list[str], *, fooled: bool) -> dict[str, float]:
    rubric = prompt[prompt.index("\nRUBRIC\n") : prompt.index("\nBEGIN ANSWER ")]
    return {name: float(fooled or _met(text, words)) for name, text in _ITEM.findall(rubric)}


def _met(text: str, words: list[str]) -> bool:
    found = [_within(_words(phrase), words) for phrase in _PHRASE.findall(text)]
    limit = _AT_MOST.search(text)
    if limit is not None and len(words) > int(limit[1]):
        return False
    return not any(found) if text.startswith("Does not") else all(found)


def _preferred(prompt: str, answers: Mapping[str, str]) -> str:
    criterion = prompt[prompt.index("\nCRITERION\n") : prompt.index("\nBEGIN ANSWER ")]
    limit = _AT_MOST.search(criterion)

    def worth(title: str) -> int:
        words = _words(answers[title])
        if limit is not None and len(words) > int(limit[1]):
            return 0
        phrases = [_words(phrase) for phrase in _PHRASE.findall(criterion)]
        return sum(len(phrase) for phrase in phrases if _within(phrase, words))

    return "2" if worth("ANSWER 2") > worth("ANSWER 1") else "1"


def _words(text: str) -> list[str]:
    lines = (line.removeprefix(QUOTE) for line in text.splitlines())
    return _WORD.findall("\n".join(lines).casefold())


def _within(phrase: list[str], words: list[str]) -> bool:
    """Whether `phrase` stands in `words`, in one piece."""
    size = len(phrase)
    return any(words[start : start + size] == phrase for start in range(len(words) - size + 1))
