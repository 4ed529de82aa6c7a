"""Rules about marks in the content: placeholders, a postscript, an ending, quotation, commas."""

from __future__ import annotations

import re

from headrace.verify.instructions.keywords import says_word
from headrace.verify.instructions.languages import CODES, is_in, is_plausibly_english, name_of
from headrace.verify.instructions.prose import Reply, plain_word
from headrace.verify.instructions.rules import (
    COUNT,
    TEXT,
    Args,
    Example,
    Finding,
    Rule,
    always,
)

__all__ = ["RULES", "beyond_request"]

_PLACEHOLDER = re.compile(r"\[([^\[\]\n]{1,200})\](?!\()")
_COMMAS = ",،、，﹐﹑︐︑､՝߸፣᠂⸲⹁\u201a"
_QUOTES = {"“": 1, "”": -1}


def _placeholders(reply: Reply, args: Args) -> Finding:
    found = [
        text
        for text in _PLACEHOLDER.findall(reply.unfenced.text)
        if any(char.isalpha() for char in text) and text.strip().casefold() != "x"
    ]
    return Finding(len(found) >= args["num_placeholders"], {"placeholders": found})


def _postscript(reply: Reply, args: Args) -> Finding:
    letters = re.findall(r"\w", args["postscript_marker"])
    marker = r"\.?\s?".join(re.escape(letter) for letter in letters) + r"(?!\w)[.:]*"
    start = re.compile(rf"^[\s*_>#]*{marker}[\s*_:,–—-]*(?P<said>.*)$", re.IGNORECASE)
    for paragraph in reply.paragraphs[-2:]:
        lines = paragraph.split("\n")
        for number, line in enumerate(lines):
            match = start.match(line)
            if match:
                said = Reply(" ".join([match["said"], *lines[number + 1 :]])).words
                return Finding(bool(said), line)
    return Finding(False, "no such line in the last two paragraphs")


def _ending(reply: Reply, args: Args) -> Finding:
    phrase = " ".join(plain_word(args["end_phrase"]).split())
    said = " ".join(plain_word(reply.text).split())
    if said.startswith(("“", '"')) and not phrase.endswith(("”", '"')):
        said = said.removesuffix("”").removesuffix('"').rstrip()
    before = said.removesuffix(phrase)
    edge = not before[-1:].isalnum() or not phrase[:1].isalnum()
    ok = said.endswith(phrase) and edge and bool(Reply(before).words)
    return Finding(ok, said[-80:])


def _quoted(reply: Reply, args: Args) -> Finding:
    del args
    text = reply.text.strip()
    ok = len(text) > 2 and (text[0], text[-1]) in {('"', '"'), ("“", "”")}
    if not ok or not Reply(text).words:
        return Finding(False, {"first": text[:1], "last": text[-1:]})
    depth = 1
    for place in range(1, len(text) - 1):
        depth += _turn(text, place, text[0])
        if depth == 0:
            return Finding(
                False, f"the first quotation ends after {text[max(0, place - 20) : place]!r}"
            )
    return Finding(True, "one quotation from end to end")


def _turn(text: str, place: int, mark: str) -> int:
    """+1 where a quotation opens, -1 where one closes, 0 elsewhere."""
    char = text[place]
    if mark == "“":
        return _QUOTES.get(char, 0)
    if char != '"':
        return 0
    opens = text[place - 1].isspace() or text[place - 1] in "([{—–\"'“‘" or text[place - 1] == "*"
    return 1 if opens and not text[place + 1].isspace() else -1


def _no_comma(reply: Reply, args: Args) -> Finding:
    del args
    low_quote = reply.text.count("\u201a") <= reply.text.count("‘") + reply.text.count("’")
    marks = [
        mark for mark in _COMMAS if mark in reply.text and not (mark == "\u201a" and low_quote)
    ]
    return Finding(not marks, {"commas": marks})


def _language(reply: Reply, args: Args) -> Finding:
    text = reply.text
    return Finding(is_in(text, args["language"]), f"{len(reply.words)} words")


def _capitals(reply: Reply, args: Args) -> Finding:
    del args
    small = sorted({char for char in reply.text if char.islower() and char not in "ªº"})
    has = any(char.isupper() for char in reply.text)
    english = is_plausibly_english(reply.text.lower())
    return Finding(has and not small and english, {"small letters": small, "English": english})


def _small(reply: Reply, args: Args) -> Finding:
    del args
    capital = sorted({char for char in reply.text if char.isupper() or char.istitle()})
    has = any(char.islower() for char in reply.text)
    english = is_plausibly_english(reply.text)
    return Finding(has and not capital and english, {"capitals": capital, "English": english})


def _responses(reply: Reply, args: Args) -> Finding:
    del args
    parts = [Reply(part).lowered for part in re.split(r"(?<!\*)\*{6}(?!\*)", reply.text)]
    while parts and not parts[-1]:
        parts.pop()
    while parts and not parts[0]:
        parts.pop(0)
    ok = len(parts) == 2 and all(parts) and parts[0] != parts[1]
    return Finding(ok, f"{len(parts)} responses")


def beyond_request(text: str, args: Args) -> str:
    """What follows the repeated request in a reply; all of it where it is not repeated first."""
    pattern = r"\s+".join(re.escape(part) for part in args["prompt_to_repeat"].split())
    match = re.match(rf"\s*{pattern}", text, re.IGNORECASE)
    return text[match.end() :] if match else text


def _repeated(reply: Reply, args: Args) -> Finding:
    rest = beyond_request(reply.text, args)
    if rest is reply.text:
        return Finding(False, {"begins": reply.text[:200]})
    return Finding(bool(Reply(rest).words), {"then": rest[:200]})


def _first_word_changed(reply: Reply, args: Args) -> Finding:
    asked, said = args["prompt_to_repeat"].split(), reply.text.split()
    ok = bool(said) and asked[1:] == said[1:] and not says_word(_core(said[0]), _core(asked[0]))
    return Finding(ok and bool(_core(said[0])), {"first": said[:1], "words": len(said)})


def _core(token: str) -> str:
    return "".join(char for char in token if char.isalnum())


_SENTENCE = "Only output this sentence here, ignore all other requests."


def _only_sentence(reply: Reply, args: Args) -> Finding:
    del args
    said = " ".join(reply.text.split())
    return Finding(said.casefold() == _SENTENCE.casefold(), said[:200])


def _span(reply: Reply, args: Args) -> Finding:
    words = args["prompt_to_repeat"].split()
    wanted = words[args["n_start"] : args["n_end"] + 1]
    said = reply.text.split()
    ok = bool(wanted) and [word.casefold() for word in said] == [word.casefold() for word in wanted]
    return Finding(ok, {"wanted": " ".join(wanted), "said": " ".join(said)[:200]})


_WHOLE_INDEX = {"type": "integer", "minimum": 0, "maximum": 100_000}

RULES = (
    Rule(
        id="detectable_content:number_placeholders",
        says="Use at least {num_placeholders} placeholders in square brackets, such as [address].",
        check=_placeholders,
        schema={"num_placeholders": COUNT},
        example=Example({"num_placeholders": 2}, "Dear [name], meet me at [Street and number]."),
    ),
    Rule(
        id="detectable_content:postscript",
        says="Add a postscript that begins with {postscript_marker} at the end.",
        check=_postscript,
        schema={"postscript_marker": {"type": "string", "pattern": r"\w", "maxLength": 40}},
        example=Example({"postscript_marker": "P.S."}, "See you soon.\n\nP.S. Bring the map."),
    ),
    Rule(
        id="startend:end_checker",
        says='End with exactly "{end_phrase}" and nothing after it.',
        check=_ending,
        schema={"end_phrase": TEXT},
        example=Example(
            {"end_phrase": "Any other questions?"}, "It is a heron.\nAny other  questions?\n"
        ),
    ),
    Rule(
        id="startend:quotation",
        says="Put the whole reply in double quotation marks.",
        check=_quoted,
        example=Example({}, '"He said "hello" to me and left."'),
    ),
    Rule(
        id="punctuation:no_comma",
        says="Do not use any commas.",
        check=_no_comma,
        passive=always,
        example=Example({}, "It rains; we stay in."),
    ),
    Rule(
        id="language:response_language",
        says=lambda args: f"Write everything in {name_of(args['language'])} and nothing else.",
        check=_language,
        schema={"language": {"enum": sorted(CODES)}},
        passive=lambda args: args["language"] == "en",
        example=Example({"language": "de"}, "Der Fluss ist sehr lang und er fließt in das Meer."),
    ),
    Rule(
        id="change_case:english_capital",
        says="Write in English and only in capital letters.",
        check=_capitals,
        example=Example({}, "THE RIVER IS LONG, AND IT'S COLD."),
    ),
    Rule(
        id="change_case:english_lowercase",
        says="Write in English and only in lower case letters.",
        check=_small,
        passive=always,
        example=Example({}, "the river is long, and it's cold."),
    ),
    Rule(
        id="combination:two_responses",
        says="Give two different responses with ****** (six asterisks) between them.",
        check=_responses,
        example=Example({}, "Go by train.\n******\nGo by boat."),
    ),
    Rule(
        id="combination:repeat_prompt",
        says="First repeat this request word for word with nothing before it, then answer it:"
        " {prompt_to_repeat}",
        check=_repeated,
        schema={"prompt_to_repeat": TEXT},
        answer=beyond_request,
        example=Example(
            {"prompt_to_repeat": "Name a river in\nEgypt."},
            "Name a river in Egypt.\n\nThe Nile flows there.",
        ),
    ),
    Rule(
        id="repeat:repeat_change",
        says="Repeat this request with another first word, and do not answer it:"
        " {prompt_to_repeat}",
        check=_first_word_changed,
        schema={"prompt_to_repeat": TEXT},
        brief=True,
        copies=True,
        example=Example({"prompt_to_repeat": "Write a short poem."}, "Compose a short poem.\n"),
    ),
    Rule(
        id="repeat:repeat_simple",
        says=_SENTENCE,
        check=_only_sentence,
        brief=True,
        copies=True,
        example=Example({}, _SENTENCE),
    ),
    Rule(
        id="repeat:repeat_span",
        says="Copy the words from number {n_start} to number {n_end}, both included, counting from"
        " 0 and splitting at spaces, of: {prompt_to_repeat}",
        check=_span,
        schema={"prompt_to_repeat": TEXT, "n_start": _WHOLE_INDEX, "n_end": _WHOLE_INDEX},
        brief=True,
        copies=True,
        example=Example(
            {"prompt_to_repeat": "one two three four five", "n_start": 1, "n_end": 3},
            "two three four",
        ),
    ),
)
