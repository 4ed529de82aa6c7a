"""Rules about the outer form of a reply: lists, sections, titles, JSON, nesting, templates."""

from __future__ import annotations

import re
from itertools import pairwise

from headrace.verify.answers import fences
from headrace.verify.instructions.prose import (
    Reply,
    closing,
    ends_in_emoji,
    sentences_of,
    tokens_of,
)
from headrace.verify.instructions.rules import (
    COUNT,
    TEXT,
    Args,
    Example,
    Finding,
    Rule,
    always,
)
from headrace.verify.strict_json import Malformed, read_json

__all__ = ["RULES"]

_BULLET = re.compile(r"^[ \t]*(?:[*+-][ \t]+(?=\S)|\*(?=[^\s*])(?![^\n]*\*))(?P<said>.*)$")
_RULE_LINE = re.compile(r"^[ \t]*(?:\*[ \t]*){3,}$|^[ \t]*(?:-[ \t]*){3,}$")
_STAR = re.compile(r"^[ \t]*\*(?:[ \t]+(?=\S)|(?=[^\s*])(?![^\n]*\*))(?P<said>.*)$")
_DASH = re.compile(r"^[ \t]*[-–][ \t]+(?=\S)(?P<said>.*)$")
_HIGHLIGHT = re.compile(r"(?<![*\w\\])(\*{1,3})(?=[^\s*])([^*\n]{0,2000}?[^\s*\\])\1(?!\*)")
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_TITLE = re.compile(r"<<([^<>\n]{1,300})>>")
_HEADING = re.compile(
    r"^\s*(?:#{1,6}\s|<h[1-6]\b|\*\*[^*\n]+\*\*:?\s*$|(?:section|part|chapter)\s+\w+\b)",
    re.IGNORECASE,
)
_THESIS = re.compile(r"\s*<(i|em)>(?P<said>[^<>]+)</\1>(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_OPEN, _CLOSE = "([{", ")]}"


def _has_words(text: str) -> bool:
    return any(char.isalnum() for char in text)


def _items(reply: Reply, kind: re.Pattern[str]) -> list[str]:
    """What stands in the list items of a kind, outside of fences; never a rule or an empty one."""
    matches = (kind.match(line) for line in reply.unfenced.lines if not _RULE_LINE.match(line))
    return [match["said"] for match in matches if match and _has_words(match["said"])]


def _bullets(reply: Reply, args: Args) -> Finding:
    count = len(_items(reply, _BULLET))
    return Finding(count == args["num_bullets"], f"{count} bullet points")


def _highlights(reply: Reply, args: Args) -> Finding:
    found = [text for _, text in _HIGHLIGHT.findall(reply.unfenced.text) if _has_words(text)]
    return Finding(len(found) >= args["num_highlights"], {"highlighted": found})


def _sections(reply: Reply, args: Args) -> Finding:
    splitter = r"\s+".join(re.escape(part) for part in args["section_spliter"].split())
    head = re.compile(rf"^[ \t#*_>]*{splitter}\s*(\d+|[IVXLC]+|[A-Z])\b[^\w\n]*", re.MULTILINE)
    marks = list(head.finditer(reply.text))
    ends = [*(mark.start() for mark in marks), len(reply.text)][1:]
    filled = {
        mark[1]
        for mark, end in zip(marks, ends, strict=True)
        if _has_words(reply.text[mark.end() : end])
    }
    return Finding(len(filled) >= args["num_sections"], {"sections": sorted(filled)})


def _one_option(reply: Reply, args: Args) -> Finding:
    del args
    said = [option for option in _OPTIONS if option in reply.text]
    return Finding(len(said) == 1, {"options": said})


def _json(reply: Reply, args: Args) -> Finding:
    del args
    text = reply.text.strip()
    blocks = fences(text)
    if text.startswith(("```", "~~~")):
        whole = len(blocks) == 1 and blocks[0].closed and text.rstrip("`~ \t").endswith("\n")
        if not whole:
            return Finding(False, "more than one closed fence")
        text = blocks[0].body
    try:
        value = read_json(text)
    except Malformed as error:
        return Finding(False, str(error))
    ok = isinstance(value, (dict, list)) and bool(value)
    return Finding(ok, f"a {type(value).__name__}")


def _title(reply: Reply, args: Args) -> Finding:
    del args
    titles = [title for title in _TITLE.findall(reply.text) if _has_words(title)]
    return Finding(bool(titles), {"titles": titles})


def _options(reply: Reply, args: Args) -> Finding:
    listed = args["options"]
    separator = r"/" if "/" in listed else r",?\s+or\s+|," if re.search(r"\sor\s", listed) else r","
    options = {_plain_option(option) for option in re.split(separator, listed)}
    said = _plain_option(reply.text)
    return Finding(said in options, said[:200])


def _plain_option(text: str) -> str:
    plain = " ".join(text.casefold().replace("’", "'").split())
    return plain.strip("\"'*_ ").removesuffix(".").rstrip() or plain


def _one_per_line(reply: Reply, args: Args) -> Finding:
    del args
    crowded = [line for line in reply.lines if len(tokens_of(line)) > 1]
    words = sum(len(tokens_of(line)) for line in reply.lines)
    return Finding(not crowded and words > 1, {"lines with more": crowded, "words": words})


def _emoji(reply: Reply, args: Args) -> Finding:
    del args
    without = [sentence for sentence in reply.sentences if not ends_in_emoji(sentence)]
    return Finding(bool(reply.sentences) and not without, {"without": without})


def _stairs(reply: Reply, args: Args) -> Finding:
    del args
    lines = [line.expandtabs(4) for line in reply.lines]
    steps = [len(line) - len(line.lstrip()) for line in lines]
    ok = len(steps) > 1 and all(low < high for low, high in pairwise(steps))
    return Finding(ok, {"indents": steps})


class _Nest:
    """How deep complete nests go: each level closed by its own mark, with words in the middle."""

    def __init__(self) -> None:
        self.said = 0
        self.deepest = 0
        self._open: list[tuple[str, int, int]] = []

    def inside(self) -> str:
        """The mark that would close the innermost open level, "" outside of all."""
        return self._open[-1][0] if self._open else ""

    def open(self, closer: str) -> None:
        self._open.append((closer, self.said, 0))

    def clear(self) -> None:
        self._open.clear()

    def close(self) -> None:
        _, said, below = self._open.pop()
        level = below + 1 if below or self.said > said else 0
        self.deepest = max(self.deepest, level)
        if self._open:
            closer, before, known = self._open[-1]
            self._open[-1] = (closer, before, max(known, level))


def _nested(reply: Reply, args: Args) -> Finding:
    del args
    nest = _Nest()
    for char in reply.text:
        if char in _OPEN:
            nest.open(_CLOSE[_OPEN.index(char)])
        elif char in _CLOSE:
            if nest.inside() == char:
                nest.close()
            else:
                nest.clear()
        elif char.isalnum():
            nest.said += 1
    return Finding(nest.deepest >= 5, f"{nest.deepest} levels")


def _nested_quotes(reply: Reply, args: Args) -> Finding:
    """As for brackets, with quotes that must alternate; apostrophes inside words are none."""
    del args
    text = reply.text.translate(str.maketrans("“”‘’", "\"\"''"))
    nest = _Nest()
    for place, char in enumerate(text):
        nest.said += char.isalnum()
        if char not in "\"'":
            continue
        before, after = text[place - 1 : place], text[place + 1 : place + 2]
        if char == "'" and before.isalnum() and after.isalnum():
            continue
        opens = not before or before.isspace() or before in "\"'([{—–-*"
        if nest.inside() == char and (not opens or not after or after.isspace()):
            nest.close()
        elif opens and nest.inside() != char:
            nest.open(char)
    return Finding(nest.deepest >= 3, f"{nest.deepest} levels")


def _explained(reply: Reply, args: Args) -> Finding:
    del args
    text = reply.text.translate(str.maketrans("“”„«»", '"""""'))
    parts = text.split('"')
    outside, inside = parts[2::2], parts[1::2]
    bare = [said for said, then in zip(inside, outside, strict=False) if len(tokens_of(then)) < 2]
    ok = len(parts) % 2 == 1 and len(parts) > 1 and not bare
    return Finding(ok, {"quotes": len(inside), "unexplained": bare})


def _own_bullets(reply: Reply, args: Args) -> Finding:
    mark = args["sep"].strip()
    literal, last = re.escape(mark), re.escape(mark[-1])
    begins = rf"^[ \t]*{literal}(?!{last})|(?<=\s){literal}(?=\s)"
    parts = re.split(begins, reply.text, flags=re.MULTILINE)
    items = [part for part in parts[1:] if _has_words(part)]
    if mark == "-":
        items = _items(reply, _DASH)
    plain = re.compile(r"^[ \t]*(?:[*+•‣◦-]|\d{1,3}[.)])[ \t]+(?P<said>.*)$")
    other = [] if mark in ("-", "*", "+", "•") else _items(reply, plain)
    return Finding(len(items) >= 2 and not other, {"items": len(items), "other bullets": other})


def _theses(reply: Reply, args: Args) -> Finding:
    del args
    sections: list[list[str]] = [[]]
    for line in reply.lines:
        if _HEADING.match(line):
            sections.append([])
        else:
            sections[-1].append(line)
    if len(sections) > 1:
        sections = sections[1:]
    without: list[str] = []
    for lines in sections:
        match = _THESIS.match("\n".join(lines))
        if not match or not _has_words(match["said"]) or not _has_words(match["rest"]):
            without.append("\n".join(lines)[:100])
    return Finding(not without, {"sections": len(sections), "without": without})


def _sub_bullets(reply: Reply, args: Args) -> Finding:
    del args
    below: list[int] = []
    for line in reply.unfenced.lines:
        star, dash = _STAR.match(line), _DASH.match(line)
        if star and _has_words(star["said"]) and not _RULE_LINE.match(line):
            below.append(0)
        elif dash and _has_words(dash["said"]) and below:
            below[-1] += 1
    return Finding(bool(below) and all(below), {"sub-bullets of each bullet": below})


def _text_then_bullets(reply: Reply, args: Args) -> Finding:
    del args
    before: list[str] = []
    for line in reply.text.split("\n"):
        if _STAR.match(line) and not _RULE_LINE.match(line):
            break
        before.append(line)
    said = [text for text in sentences_of("\n".join(before)) if closing(text) == "."]
    bullets = len(_items(reply, _STAR))
    return Finding(len(said) >= 2 and bullets >= 2, {"sentences": len(said), "bullets": bullets})


def _template(reply: Reply, args: Args) -> Finding:
    del args
    places = [reply.text.find(label) for label in _TEMPLATE]
    once = all(reply.text.count(label) == 1 for label in _TEMPLATE)
    if not once or places != sorted(places) or reply.text[: places[0]].strip():
        return Finding(False, "not the three labels once, in order, and nothing before them")
    ends = [*places[1:], len(reply.text)]
    said = [
        reply.text[place + len(label) : end]
        for label, place, end in zip(_TEMPLATE, places, ends, strict=True)
    ]
    blank = [part for part in said if not _has_words(re.sub(r"\[[^\[\]]*\]", "", part))]
    return Finding(not blank, {"left blank": len(blank)})


def _no_space(reply: Reply, args: Args) -> Finding:
    del args
    count = sum(char.isspace() for char in reply.text.strip())
    return Finding(count == 0, f"{count} spaces")


_PLAIN_RULES = (
    Rule(
        id="detectable_format:number_bullet_lists",
        says="Use exactly {num_bullets} Markdown bullet points, such as * this one.",
        check=_bullets,
        schema={"num_bullets": COUNT},
        example=Example({"num_bullets": 2}, "**Note**\n* one *big* thing\n- another\n***\n"),
    ),
    Rule(
        id="detectable_format:number_highlighted_sections",
        says="Highlight at least {num_highlights} parts with Markdown, such as *this*.",
        check=_highlights,
        schema={"num_highlights": COUNT},
        example=Example({"num_highlights": 2}, "* A *first* thing\n* A **second** one"),
    ),
    Rule(
        id="detectable_format:multiple_sections",
        says="Write at least {num_sections} sections, and begin them with {section_spliter} 1,"
        " {section_spliter} 2 and so on.",
        check=_sections,
        schema={"section_spliter": TEXT, "num_sections": COUNT},
        example=Example(
            {"section_spliter": "Day", "num_sections": 2}, "**Day 1**\nWe left.\n## Day 2: We came."
        ),
    ),
    Rule(
        id="detectable_format:constrained_response",
        says='Answer with exactly one of: "My answer is yes.", "My answer is no.", "My answer is'
        ' maybe."',
        check=_one_option,
        brief=True,
        example=Example({}, "My answer is yes."),
    ),
    Rule(
        id="detectable_format:json_format",
        says="Write nothing but one JSON object or list; a fence around it is fine.",
        check=_json,
        brief=True,
        example=Example({}, '```json\n{"river": "Nile", "length": 6650}\n```'),
    ),
    Rule(
        id="detectable_format:title",
        says="Give it a title in double angular brackets, such as <<a title>>.",
        check=_title,
        example=Example({}, "<<The River>>\nIt runs to the sea."),
    ),
    Rule(
        id="format:options",
        says="Answer with one of these and nothing else: {options}.",
        check=_options,
        schema={"options": TEXT},
        brief=True,
        example=Example({"options": "I know or I don't know"}, "I don’t know."),
    ),
    Rule(
        id="format:output_template",
        says="Use exactly this template: My Answer: [answer] My Conclusion: [conclusion] Future"
        " Outlook: [outlook]",
        check=_template,
        example=Example({}, "My Answer: rain\nMy Conclusion: stay in\nFuture Outlook: sun"),
    ),
    Rule(
        id="format:no_whitespace",
        says="Do not use any spaces or line breaks.",
        check=_no_space,
        passive=always,
        brief=True,
        example=Example({}, "RainIsLikely,SoStayAtHome."),
    ),
)

_SHAPE_RULES = (
    Rule(
        id="format:newline",
        says="Write each word on a new line.",
        check=_one_per_line,
        example=Example({}, "Rain\nis\n\nlikely."),
    ),
    Rule(
        id="format:emoji",
        says="End every sentence with an emoji.",
        check=_emoji,
        example=Example(
            {}, "Rain is likely. \U0001f327\ufe0f Stay in \U0001f3e0! Sun later \u2600"
        ),
    ),
    Rule(
        id="format:line_indent",
        says="Indent each new line more than the one before, like stairs.",
        check=_stairs,
        example=Example({}, "one step\n\n\n  two steps\n\n    three steps"),
    ),
    Rule(
        id="format:parentheses",
        says="Nest brackets (such as [these {{and these}}]) at least 5 levels deep.",
        check=_nested,
        example=Example({}, "a) Rivers (like [the {Nile (and [its] two)} arms] here)."),
    ),
    Rule(
        id="format:quotes",
        says="Put quotes within quotes within quotes, at least 3 levels deep, double and single in"
        " turn.",
        check=_nested_quotes,
        example=Example({}, 'It\'s said: "Ann told me \'Bob cried "run" and ran\' today".'),
    ),
    Rule(
        id="format:quote_unquote",
        says="Explain every quoted phrase, outside of quotes, right after it.",
        check=_explained,
        example=Example({}, 'Say "in spate" when a river is in flood.'),
    ),
    Rule(
        id="format:list",
        says="Answer with a list whose items begin with {sep} instead of a bullet point.",
        check=_own_bullets,
        schema={"sep": TEXT},
        example=Example({"sep": "!?!?"}, "Rivers:\n!?!? the Nile\n!?!? the Po"),
    ),
    Rule(
        id="format:thesis",
        says="Begin each section with a thesis statement in italics, made with HTML.",
        check=_theses,
        example=Example(
            {}, "# One\n<em>Rivers made us.</em> They did.\n# Two\n<i>Cities too.</i> So."
        ),
    ),
    Rule(
        id="format:sub-bullets",
        says="Use bullet points made with *, each with at least one sub-bullet point made with -.",
        check=_sub_bullets,
        example=Example({}, "**Rivers**\n* Nile\n  - long\n* Po\n  - short\n  - slow"),
    ),
    Rule(
        id="format:no_bullets_bullets",
        says="Write at least two sentences that end in a period, then at least two bullet points"
        " made with *.",
        check=_text_then_bullets,
        example=Example({}, "Rivers run. They meet.\n\n* Nile\n\n* Po"),
    ),
)

RULES = _PLAIN_RULES + _SHAPE_RULES
