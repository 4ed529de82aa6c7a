"""Rules that each belong to one request of IFBench: what is asked for is part of the rule.

They check the form and, where the request has a right answer, the answer.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from datetime import date

from headrace.verify.answers import fences
from headrace.verify.instructions.lexicon import AFRICA, CAPITALS
from headrace.verify.instructions.prose import Reply
from headrace.verify.instructions.rules import Args, Example, Finding, Rule

__all__ = ["RULES"]

_QUESTION = re.compile(r"^[ \t#*_]*Question\b[^\S\n]*\d*[.):*_]*[^\S\n]*", re.MULTILINE)
_OPTION = re.compile(r"^[\s*_-]*\(?(?P<name>[A-Ea-e])[.):][\s*_]*(?P<said>.*)$")
_LISTED = re.compile(r"^[ \t*•+-]*(?:\d{1,2}[.)])?")
_MULTIPLES = ["14", "21", "28", "35", "42", "49"]
_BATTLES = {
    date(1796, 5, 10),
    date(1798, 7, 21),
    date(1800, 6, 14),
    date(1805, 12, 2),
    date(1806, 10, 14),
    date(1807, 6, 14),
    date(1809, 7, 5),
    date(1812, 9, 7),
    date(1813, 10, 16),
    date(1815, 6, 18),
}
"""Lodi, Pyramids, Marengo, Austerlitz, Jena, Friedland, Wagram, Borodino, Leipzig, Waterloo."""
_FIRST, _LAST = date(1793, 8, 1), date(1815, 7, 31)
_CAREER_DATES, _KNOWN_DATES = 10, 5


def _plain(text: str) -> str:
    """Without accents, in one case, with single spaces and plain apostrophes."""
    text = unicodedata.normalize("NFKD", text.casefold().replace("’", "'"))
    return " ".join("".join(c for c in text if not unicodedata.combining(c)).split())


def _multiples(reply: Reply, args: Args) -> Finding:
    del args
    numbers = re.findall(r"\d+", reply.text)
    return Finding(numbers == _MULTIPLES, {"numbers": numbers})


def _quiz(reply: Reply, args: Args) -> Finding:
    del args
    marks = list(_QUESTION.finditer(reply.text))
    if len(marks) != 4 or reply.text[: marks[0].start()].strip():
        return Finding(False, f"{len(marks)} questions, or text before the first")
    ends = [*(mark.start() for mark in marks[1:]), len(reply.text)]
    lengths: list[int] = []
    options: list[str] = []
    for mark, end in zip(marks, ends, strict=True):
        lines = [line for line in reply.text[mark.end() : end].split("\n") if line.strip()]
        kinds = [_OPTION.match(line) for line in lines]
        first = next((place for place, kind in enumerate(kinds) if kind), len(lines))
        lengths.append(len(" ".join(line.strip() for line in lines[:first])))
        after = [
            kind["name"].lower() if kind and kind["said"].strip() else "?" for kind in kinds[first:]
        ]
        options.append("".join(after))
    longer = all(one < two for one, two in zip([0, *lengths], lengths, strict=False))
    ok = longer and options == ["abcde"] * 4
    return Finding(ok, {"characters": lengths, "options": options})


def _countries(reply: Reply, args: Args) -> Finding:
    del args
    which = {name: place for place, names in enumerate(AFRICA) for name in names}
    lines = [_LISTED.sub("", line, count=1).strip(" .,*_") for line in reply.lines]
    said = [_plain(line) for line in lines]
    strangers = [line for line in said if line not in which and line != "western sahara"]
    states = {which[line] for line in said if line in which}
    ok = (
        not strangers
        and len(states) >= len(AFRICA) - 2
        and len(set(said)) == len(said)
        and said == sorted(said, reverse=True)
    )
    return Finding(ok, {"countries": len(states), "no country": strangers})


def _words_reversed(reply: Reply, args: Args) -> Finding:
    del args
    forward = " ".join(reversed([_plain(word) for word in reply.words]))
    ok = "bald eagle" in forward and "bald eagle" not in " ".join(map(_plain, reply.words))
    return Finding(ok and len(reply.words) >= 4, {"read backwards": forward[:200]})


def _letters_reversed(reply: Reply, args: Args) -> Finding:
    del args
    said = _plain(reply.text)
    ok = "bald eagle" in said[::-1] and "bald eagle" not in said and len(reply.words) >= 3
    return Finding(ok, {"read backwards": said[::-1][:200]})


def _abecedarian(reply: Reply, args: Args) -> Finding:
    del args
    first = "".join(_plain(Reply(sentence).words[0])[:1] for sentence in reply.sentences)
    return Finding(first == "abcdefghijklmnopqrstuvwxyz", {"first letters": first[:60]})


def _capitals(reply: Reply, args: Args) -> Finding:
    del args
    said = [_plain(part.strip(" .\n*")) for part in reply.text.split(",")]
    wrong = [
        f"{name} for {names[0]}"
        for name, names in zip(said, CAPITALS, strict=False)
        if name not in names
    ]
    return Finding(
        len(said) == len(CAPITALS) and not wrong, {"count": len(said), "wrong": wrong[:3]}
    )


def _table(reply: Reply, delimiter: str) -> tuple[list[str], list[list[str]]] | None:
    """The lines of a table that is all of the reply or of its only fence, and their fields."""
    text = reply.text.strip("\n")
    if text.lstrip().startswith(("```", "~~~")):
        blocks = fences(text)
        if len(blocks) != 1 or not blocks[0].closed or not text.rstrip().endswith(("```", "~~~")):
            return None
        text = blocks[0].body
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return lines, [[field.strip() for field in row] for row in rows]


def _table_found(reply: Reply, header: list[str], rows: int, delimiter: str = ",") -> Finding:
    table = _table(reply, delimiter)
    if table is None:
        return Finding(False, "no table, or text beside it")
    fields = table[1]
    full = all(len(row) == len(header) and all(row) for row in fields)
    ok = len(fields) == rows + 1 and fields[0] == header and full
    return Finding(
        ok, {"header": fields[0] if fields else [], "rows": len(fields) - 1, "full": full}
    )


def _cities(reply: Reply, args: Args) -> Finding:
    del args
    return _table_found(reply, ["ID", "Country", "City", "Year", "Count"], 7)


def _products(reply: Reply, args: Args) -> Finding:
    del args
    found = _table_found(reply, ["ProductID", "Category", "Brand", "Price", "Stock"], 14)
    body = reply.text.strip().partition("\n")[2]
    special = re.findall(
        r'(?:^|,)[ \t]*"([^"\n]*[^\w\s"][^"\n]*)"[ \t]*(?=,|$)', body, re.MULTILINE
    )
    return Finding(found.ok and bool(special), {"table": found.found, "special": special})


def _students(reply: Reply, args: Args) -> Finding:
    del args
    header = ["StudentID", "Subject", "Grade", "Semester", "Score"]
    found = _table_found(reply, header, 3, "\t")
    table = _table(reply, "\t")
    quoted = table is not None and all(
        re.fullmatch(r'[ ]*"[^"]*"[ ]*(?:\t[ ]*"[^"]*"[ ]*){4}', line) for line in table[0]
    )
    return Finding(found.ok and quoted, {"table": found.found, "every field quoted": quoted})


def _dates(reply: Reply, args: Args) -> Finding:
    del args
    said: list[date] = []
    for part in reply.text.strip().rstrip(".").split(","):
        day = part.strip()
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", day, re.ASCII):
            return Finding(False, {"no such date": day[:80]})
        try:
            said.append(date.fromisoformat(day))
        except ValueError:
            return Finding(False, {"no such date": day})
    ours = all(_FIRST <= day <= _LAST for day in said)
    known = len(_BATTLES.intersection(said))
    ok = ours and len(set(said)) == len(said) >= _CAREER_DATES and known >= _KNOWN_DATES
    return Finding(ok, {"dates": len(said), "of ten famous battles": known})


_ALPHABET_STORY = (
    "A fox woke. Bees hummed. Crows called. Dawn came. Elms shook. Frost fell. Geese flew. Hail"
    " hit. Ice broke. Jays sang. Kites rose. Larks dived. Mice hid. Night fell. Owls hunted. Ponds"
    " froze."
    ' "Quiet!" said Owl. Rain fell. Snow lay. Toads slept. Under it all lay roots. Voles dug.'
    " Wolves howled. Xeric weeds died. Young deer ran. Zephyrs blew."
)
_QUIZ = "\n".join(
    f"Question {number}: {asked}\n"
    + "\n".join(f"{name}) {said}" for name, said in zip("ABCDE", given, strict=True))
    for number, (asked, given) in enumerate(
        (
            ("Who painted Guernica?", ("Picasso", "Klee", "Miro", "Ernst", "Dali")),
            ("Who made the work called Fountain?", ("Duchamp", "Arp", "Ray", "Ball", "Hoch")),
            (
                "Which school taught design in Dessau then?",
                ("Bauhaus", "Slade", "RISD", "RCA", "Yale"),
            ),
            (
                "Which painter of drips worked on the floor of a barn?",
                ("Pollock", "Kline", "Still", "Rothko", "Guston"),
            ),
        ),
        start=1,
    )
)

RULES = (
    Rule(
        id="custom:multiples",
        says="Count from 10 to 50 but only print multiples of 7.",
        check=_multiples,
        brief=True,
        example=Example({}, "14, 21, 28, 35, 42, 49"),
    ),
    Rule(
        id="custom:mcq_count_length",
        says='Write 4 multiple choice questions with 5 options each about "20th century art'
        ' history". Begin each with the label "Question", make each longer than the one before,'
        " and explain nothing.",
        check=_quiz,
        example=Example({}, _QUIZ),
    ),
    Rule(
        id="custom:reverse_newline",
        says="List the countries of Africa in reverse alphabetical order, each on a new line.",
        check=_countries,
        example=Example(
            {}, "\n".join(sorted((names[0].title() for names in AFRICA), reverse=True))
        ),
    ),
    Rule(
        id="custom:word_reverse",
        says="What animal is the national symbol of the US? Answer in a sentence with its words in"
        " reverse order.",
        check=_words_reversed,
        example=Example({}, "Eagle bald the is US the of symbol national the."),
    ),
    Rule(
        id="custom:character_reverse",
        says="What animal is the national symbol of the US? Answer in a sentence with its letters"
        " in reverse order.",
        check=_letters_reversed,
        example=Example({}, ".elgae dlab eht si lamina ehT"),
    ),
    Rule(
        id="custom:sentence_alphabet",
        says="Tell a story of 26 sentences whose first words begin with the letters of the alphabet"
        " in order.",
        check=_abecedarian,
        example=Example({}, _ALPHABET_STORY),
    ),
    Rule(
        id="custom:european_capitals_sort",
        says="Name all capitals of European countries north of 45 degrees, separated by commas,"
        " from north to south, without country names.",
        check=_capitals,
        example=Example({}, ", ".join(names[0].title() for names in CAPITALS)),
    ),
    Rule(
        id="custom:csv_city",
        says='Write CSV with the columns "ID", "Country", "City", "Year", "Count" and 7 rows, with'
        " commas between fields.",
        check=_cities,
        example=Example(
            {},
            "ID,Country,City,Year,Count\n"
            + "\n".join(f'{n},Peru,"Lima, north",{2000 + n},{n * 3}' for n in range(1, 8)),
        ),
    ),
    Rule(
        id="custom:csv_special_character",
        says='Write CSV with the columns "ProductID", "Category", "Brand", "Price", "Stock" and 14'
        " rows, with commas between fields; put a field with a special character in double quotes.",
        check=_products,
        example=Example(
            {},
            'ProductID,Category,Brand,Price,Stock\n1,"Tea & more",Ada,2.50,7\n'
            + "\n".join(f"{n},Tea,Ada,2.50,{n}" for n in range(2, 15)),
        ),
    ),
    Rule(
        id="custom:csv_quotes",
        says='Write tab-separated values with the columns "StudentID", "Subject", "Grade",'
        ' "Semester", "Score" and 3 rows, each field in double quotes.',
        check=_students,
        example=Example(
            {},
            '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n'
            + "\n".join(f'"{n}"\t"Art"\t"B"\t"Fall"\t"{80 + n}"' for n in range(3)),
        ),
    ),
    Rule(
        id="custom:date_format_list",
        says="List the start dates of all the battles Napoleon fought as YYYY-MM-DD, separated by"
        " commas, and explain nothing.",
        check=_dates,
        example=Example({}, ", ".join(day.isoformat() for day in sorted(_BATTLES))),
    ),
)
