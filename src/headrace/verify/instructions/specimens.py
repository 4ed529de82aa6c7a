"""Small tasks with which the kind `instructions` is audited.

None is made of passive instructions alone, so every floor is 0. No reference holds a digit: a
number in it could be changed without any instruction being broken.
"""

from __future__ import annotations

from headrace.types import Json
from headrace.verify.instructions.verifier import ID, Instructions
from headrace.verify.kinds import Specimen, Specimens

__all__ = ["specimens"]


def _asks(*pairs: tuple[str, dict[str, Json]], **options: Json) -> Json:
    return {"instructions": [{"id": id_, "kwargs": kwargs} for id_, kwargs in pairs], **options}


_SPRING = (
    "Spring along the river:\n* A heron waits in the shallows.\n* The willow turns green again.\n"
    "* Cold water carries the last ice away."
)
_BREAD = (
    "Dough is flour, water and time.\n\nYeast eats the sugar and breathes out gas, and the gas is"
    " caught in the dough. Now bake it."
)
_LETTER = (
    "<<A leak in the kitchen>>\n\nDear [name of landlord], since Monday water drips from the"
    " ceiling. Please call me at [telephone].\n\nP.S. The bucket is nearly full."
)
_SKY = (
    "Das Licht der Sonne trifft auf die Luft, und sie streut den blauen Teil am meisten. Darum ist"
    " der Himmel am Tag blau."
)
_TIDES = (
    "The moon pulls at the sea. Where it pulls most, the tide is high. When the moon has gone on,"
    " the tide falls, and half a day later another tide comes."
)
_RAIN = "We saw rain. Rain fills old stone wells. Wells keep cold clear water all summer."
_MOTTOS = "read widely and think slowly.\n******\nevery shelf holds a door."
_GARDEN = (
    "Water the beds at dawn. \U0001f305 Then rest in the shade \U0001f333. Is it enough? \U0001f914"
)
_WHALE = "A whale breathes air and feeds its young with milk. My answer is no."

_ITEMS = (
    Specimen(
        prompt="Describe a river in spring. Mention a heron and a willow, make exactly three"
        " bullet points with *, and use no commas.",
        answer=_asks(
            ("keywords:existence", {"keywords": ["heron", "willow"]}),
            ("detectable_format:number_bullet_lists", {"num_bullets": 3}),
            ("punctuation:no_comma", {}),
        ),
        reference=_SPRING,
        wrong=(
            _SPRING.replace("heron", "heronry"),
            _SPRING.replace("* ", "• "),
            _SPRING.replace(" again", "， again"),
            _SPRING.replace("A heron", "A bird").replace("river:", "river:<!-- heron -->"),
            _SPRING + "\n* And so on.",
            "",
        ),
        right=(_SPRING.replace("* ", "- "), _SPRING.replace("A heron", "A HERON")),
    ),
    Specimen(
        prompt="Why does bread rise? Write two paragraphs with a blank line between them, fewer"
        ' than sixty words in all. Begin the second with "Yeast" and end with "Now bake it."',
        answer=_asks(
            (
                "length_constraints:nth_paragraph_first_word",
                {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "yeast"},
            ),
            ("length_constraints:number_words", {"relation": "less than", "num_words": 60}),
            ("startend:end_checker", {"end_phrase": "Now bake it."}),
        ),
        reference=_BREAD,
        wrong=(
            _BREAD.replace("Yeast", "The yeast"),
            _BREAD.replace("\n\n", "\n"),
            _BREAD + " Enjoy!",
            _BREAD.replace("time.", "time. " + "It needs patience and care. " * 9),
        ),
        right=(_BREAD.replace("\n\n", "\n\n\n\n"), _BREAD.replace("Yeast", "**Yeast**")),
    ),
    Specimen(
        prompt="Write to my landlord about a leak. Put a title in double angular brackets, use at"
        " least two placeholders in square brackets, and close with a postscript (P.S.).",
        answer=_asks(
            ("detectable_format:title", {}),
            ("detectable_content:number_placeholders", {"num_placeholders": 2}),
            ("detectable_content:postscript", {"postscript_marker": "P.S."}),
            score="mean",
        ),
        reference=_LETTER,
        wrong=(
            _LETTER.replace("<<A leak in the kitchen>>", "A leak in the kitchen"),
            _LETTER.replace("[telephone]", "[call](https://example.org)"),
            _LETTER.replace("P.S. The bucket is nearly full.", "P.S."),
        ),
        right=(_LETTER.replace("P.S.", "PS:"),),
    ),
    Specimen(
        prompt="Why is the sky blue? Answer in German, in at least two sentences.",
        answer=_asks(
            ("language:response_language", {"language": "de"}),
            ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 2}),
        ),
        reference=_SKY,
        wrong=(
            "The air scatters the blue part of the light most. So the sky is blue by day.",
            _SKY.replace(". Darum", " und darum"),
            _SKY + "\nIn English that is to say that the air scatters the blue light of the sun.",
        ),
    ),
    Specimen(
        prompt="Explain the tides in at least three sentences. Use the word tide at least three"
        " times and the word moon at least twice.",
        answer=_asks(
            ("keywords:frequency", {"keyword": "tide", "relation": "at least", "frequency": 3}),
            ("keywords:frequency", {"keyword": "moon", "relation": "at least", "frequency": 2}),
            ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 3}),
        ),
        reference=_TIDES,
        wrong=(
            _TIDES.replace("another tide", "another"),
            _TIDES.replace("The moon", "The sun"),
            "Tidetidetide moonmoon. Yes. No. Yes.",
        ),
        right=(_TIDES.upper(),),
    ),
    Specimen(
        prompt="Write about rain. Each sentence must have exactly two more words than the one"
        " before and begin with the last word of it.",
        answer=_asks(("sentence:increment", {"small_n": 2}), ("words:last_first", {})),
        reference=_RAIN,
        wrong=(
            _RAIN.replace("old stone", "stone"),
            _RAIN.replace("Wells keep", "They keep"),
            "We saw rain.",
        ),
        right=(_RAIN.replace("saw rain.", 'saw "rain".'),),
    ),
    Specimen(
        prompt="Give two different mottos for a library with six asterisks (******) between them."
        " Write in lower case only, and do not say book or books.",
        answer={
            "instruction_id_list": [
                "combination:two_responses",
                "change_case:english_lowercase",
                "keywords:forbidden_words",
            ],
            "kwargs": [{}, {"end_phrase": None}, {"forbidden_words": ["book", "books"]}],
        },
        reference=_MOTTOS,
        wrong=(
            _MOTTOS.replace("every", "Every"),
            _MOTTOS.replace("a door", "a bооk"),
            "read widely and think slowly.\n******\nread widely and think slowly!",
        ),
        right=(_MOTTOS.replace("\n", "\n\n"),),
    ),
    Specimen(
        prompt="How do I keep a garden through a heat wave? Begin with a verb, end each sentence"
        " with an emoji, and write two statements for each question.",
        answer=_asks(
            ("words:start_verb", {}),
            ("format:emoji", {}),
            ("ratio:sentence_type", {}),
            mode="loose",
        ),
        reference=_GARDEN,
        wrong=(
            _GARDEN.replace("shade \U0001f333.", "shade."),
            _GARDEN.replace("Is it enough?", "It is enough."),
            _GARDEN.replace("Water the", "The"),
        ),
        right=(f"Here you are:\n{_GARDEN}", _GARDEN.replace("Water", "*Water*")),
    ),
    Specimen(
        prompt="Name one river and its country as JSON with the keys name and country, in fewer"
        " than nine words.",
        answer=_asks(
            ("detectable_format:json_format", {}),
            ("keywords:existence", {"keywords": ["name", "country"]}),
            ("length_constraints:number_words", {"relation": "less than", "num_words": 9}),
        ),
        reference='{"name": "Po", "country": "Italy"}',
        wrong=('{"name": "Po", "country": Italy}', "name: Po\ncountry: Italy", '{"name": "Po"}'),
        right=('```json\n{"name": "Po", "country": "Italy"}\n```',),
    ),
    Specimen(
        prompt='Is a whale a fish? Give a reason in one sentence, then say "My answer is yes.", "My'
        ' answer is no." or "My answer is maybe."',
        answer=_asks(
            ("detectable_format:constrained_response", {}),
            ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 2}),
            ("length_constraints:number_sentences", {"relation": "less than", "num_sentences": 3}),
        ),
        reference=_WHALE,
        wrong=(_WHALE + " My answer is yes.", _WHALE.replace("My answer is no.", "No.")),
    ),
)


def specimens() -> Specimens:
    """The domain with which the kind is audited."""
    return Specimens(f"specimens/{ID}", Instructions(), _ITEMS)
