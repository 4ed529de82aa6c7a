"""For every instruction, replies that break it under the arguments of its own example."""

from __future__ import annotations

from headrace.verify.instructions import RULES

__all__ = ["VIOLATING"]

CITIES = RULES["custom:csv_city"].example.reply
PRODUCTS = RULES["custom:csv_special_character"].example.reply
STUDENTS = RULES["custom:csv_quotes"].example.reply
STORY = RULES["custom:sentence_alphabet"].example.reply
QUIZ = RULES["custom:mcq_count_length"].example.reply
AFRICA = RULES["custom:reverse_newline"].example.reply
CAPITALS = RULES["custom:european_capitals_sort"].example.reply
DATES = RULES["custom:date_format_list"].example.reply

VIOLATING: dict[str, tuple[str, ...]] = {
    "keywords:existence": ("A river and a bridge of stone.", "Rivers, a stone bridge."),
    "keywords:frequency": ("Tea time is steady.", "Tea for the teacher's steam."),
    "keywords:forbidden_words": ("The ART of it.", "State-of-the-\u0430rt.", "art"),
    "keywords:letter_frequency": ("Zoe sleeps in the zoo.", "No such letter at all."),
    "language:response_language": (
        "The river is very long and it runs into the sea.",
        "La rivière est très longue et elle coule vers la mer.",
        "Hello world",
        "0 1 2",
    ),
    "length_constraints:number_sentences": (
        "Mr. Fox ran 2.5 miles, e.g. to Dr. Wu",
        "One... two... three.",
        "1. 2. 3. 4.",
        "Only one sentence here.",
    ),
    "length_constraints:number_words": (
        "One two three four five.",
        "this-is-just-one-long-word",
        "no\u00a0space\u2003here\u00a0at\u00a0all",
    ),
    "length_constraints:number_paragraphs": (
        "One paragraph. A ***bold*** word.",
        "One.\n***\n\n***\nTwo.",
        "One.\n\nTwo.",
        "One.\n***\nTwo.\n***\nThree.",
    ),
    "length_constraints:nth_paragraph_first_word": (
        "First it rained.\n\nAfter that it stopped.",
        "First it rained.\nThen it stopped.",
        "First.\n\nThenceforth it was dry.",
        "One.\n\nThen two.\n\nThree.",
    ),
    "detectable_content:number_placeholders": (
        "Dear [name], see [this](https://example.org).",
        "- [x] done\n- [ ] open [1]",
        "[] [  ] [...]",
    ),
    "detectable_content:postscript": (
        "See you soon.\n\nP.S.",
        "The p.s. of a letter comes last.",
        "P.S. First of all.\n\nSecond.\n\nThird.\n\nFourth.",
        "Oops we forgot the map.",
    ),
    "detectable_format:number_bullet_lists": (
        "* only one",
        "• one\n• two",
        "* one\n* two\n* three",
        "***\n* * *\n---\n* one",
        "```\n* one\n* two\n```",
        "*one* thing and\n*another* thing",
    ),
    "detectable_format:constrained_response": (
        "My answer is yes. My answer is no. My answer is maybe.",
        "my reply is yes.",
    ),
    "detectable_format:number_highlighted_sections": (
        "* a\n* b\n* c",
        "**one** and 2 * 3 * 4",
        "** ** and * * and ****",
    ),
    "detectable_format:multiple_sections": (
        "Day 1\nWe left.\nDay 2\n",
        "On Day 1 we left and on Day 2 we came.",
        "Day 1\nHere.\nDay 1\nAgain.",
    ),
    "detectable_format:json_format": (
        '{"a": 1} and more',
        '{"a": NaN}',
        '"a text"',
        "{}",
        '```json\n{"a": 1}\n```\nThere.',
        "[" * 5000 + "]" * 5000,
        '{"a": 1, "a": 2}',
    ),
    "detectable_format:title": ("<<>> text", "A <single> title", "<<\ntitle\n>>"),
    "combination:two_responses": (
        "Go by train.\n*****\nGo by boat.",
        "Go by train.\n******\nGo by train!",
        "One.\n******\nTwo.\n******\nThree.",
        "One.\n******\n",
    ),
    "combination:repeat_prompt": (
        "The Nile flows there.",
        "Name a river in Egypt.",
        "Sure! Name a river in Egypt. The Nile.",
    ),
    "startend:end_checker": (
        "Any other questions?",
        "Any other questions? No.",
        "It is a heron. Many other questions?",
    ),
    "startend:quotation": (
        '"Hello," she said, "goodbye."',
        "No quotes at all.",
        '"Half a quote',
        '""',
        '"',
    ),
    "change_case:capital_word_frequency": (
        "I saw A cat and I ran.",
        "Just ONE of them.",
        "123 456",
    ),
    "change_case:english_capital": (
        "THE RIVER IS LONG, and cold.",
        "The River Is Long And Cold.",
        "DER FLUSS IST LANG UND ER IST NICHT KALT.",
        "123 456!",
    ),
    "change_case:english_lowercase": (
        "the river is long and Cold.",
        "der fluss ist lang und er ist nicht kalt.",
        "123 456!",
    ),
    "punctuation:no_comma": (
        "It rains, we stay.",
        "It rains\uff0c we stay.",
        "It rains\u060c yes.",
    ),
    "count:word_count_range": ("Three words here.", "There are six words in here."),
    "count:unique_word_count": ("The the THE, cat cat.", "One, two: one two."),
    "ratio:stop_words": ("It is not that we are here.", "!!!"),
    "ratio:sentence_type": ("It rains. We stay.", "It rains. Do we read?", "Nothing here"),
    "ratio:sentence_balance": (
        "A heading",
        "It rains. Do we stay?",
        "It rains. We do. Really? Yes!",
    ),
    "count:conjunctions": ("And and, AND and. Or", "A band or a norm."),
    "count:person_names": ("Miami is Available to Leonardo.", "Mia and Mia and mia.", "Norah Ann"),
    "ratio:overlap": (
        "the old river runs slowly to the sea",
        "Now nothing here is like it.",
        "the old",
    ),
    "count:numbers": ("1, 2, 3, 4", "Two numbers: 1.5 and 2.", "one two three"),
    "words:alphabet": ("Ann bakes delicious cakes.", "alpha", "1 apple bakes"),
    "words:vowel": ("Audio tones hum.", "Ann is at sea.\nWe let it.", "Audi\u043e t\u00f3n eh"),
    "words:consonants": ("Strong rain struck.", "Storm 42.", "..."),
    "sentence:alliteration_increment": (
        "Big boats sail. Rivers meet.",
        "Only one sentence sings.",
        "Big boats. Big boats. Blue big boats.",
    ),
    "words:palindrome": (
        "Level level level level level level level level level level.",
        "aaaaa bbbbb ccccc ddddd eeeee fffff ggggg hhhhh iiiii jjjjj",
        "noon mom dad",
    ),
    "count:punctuation": (
        "Well, what?! Yes: I saw it; then it went.",
        "Well, so: it; no! Why?",
        ".,!?;:?!",
    ),
    "format:parentheses": (
        "((((()))))",
        "(a [b {c (d)}])",
        "( [ { ( [ open and never closed",
        "(a [b {c (d [e}])])",
    ),
    "format:quotes": (
        "\"Ann told me 'Bob cried' today\".",
        "It's Ann's, isn't it? Don't!",
        '"\'""\'"',
    ),
    "words:prime_lengths": ("Four.", "The rivers run", "..."),
    "format:options": ("I know, because I looked.", "I know I don't know", "know"),
    "format:newline": ("Rain is\nlikely.", "Rain", ""),
    "format:emoji": ("Rain is likely. Stay in \U0001f3e0", "Rain :)", "\U0001f3e0"),
    "ratio:sentence_words": (
        "Cat. Cat. Cat.",
        "Cats nap. Dogs run. Cats eat.",
        "Cats nap. Dogs run.",
        "Cats nap. Dogs run. Fish swim.",
    ),
    "count:words_japanese": ("one 二 three four", "one", "one n川 three"),
    "words:start_verb": ("The river runs.", "Rivers run.", "Go"),
    "words:repeats": ("The the THE.", "a b a b a", ""),
    "sentence:keyword": ("We eat. It is great.", "We eat at noon."),
    "count:pronouns": ("Item, theme, hero and mine.", "The river runs."),
    "words:odd_even_syllables": ("Stone bridges cross cold water.", "Stone bridge."),
    "words:last_first": ("We saw the sea. It was big.", "We saw the sea.", "The sea. Sea. It"),
    "words:paragraph_last_first": ("Rain follows rain.\nSun is out.", "Rain", "Rain rain"),
    "sentence:increment": ("It is late. We mind.", "One. One two. One two three four.", "One."),
    "words:no_consecutive": ("Big boats sail.", "Rivers (really) carve.", "River"),
    "format:line_indent": ("one\n two\n two", "one", "one\n  two\n three"),
    "format:quote_unquote": (
        'He said "in spate".',
        'Say "in" "spate" when it floods.',
        "No quotes at all.",
        'An "open quote is here.',
    ),
    "format:list": ("the Nile!?!?", "* the Nile\n* the Po", "!?!? \n!?!? ", "!?!? a\n!?!? b\n* c"),
    "format:thesis": (
        "# One\n<i>Yes.</i> Well.\n# Two\nNo thesis here.",
        "<i></i> Nothing.",
        "<i>Only the thesis.</i>",
        "*Markdown* is not HTML.",
    ),
    "format:sub-bullets": (
        "No bullets at all.",
        "* Nile\n  - long\n* Po",
        "* early-morning tea",
        "- a\n- b",
    ),
    "format:no_bullets_bullets": (
        "Rivers run.\n* Nile\n* Po",
        "Rivers run. They meet.\n* Nile",
        "* Nile\n* Po\nRivers run. They meet.",
        "Do rivers run? They do!\n* Nile\n* Po",
    ),
    "custom:multiples": ("14 21 28 35 42 49 56", "10 14 21", "7, 14, 21, 28, 35, 42, 49"),
    "custom:mcq_count_length": (
        QUIZ.replace("E) Guston", ""),
        "Here you are:\n" + QUIZ,
        QUIZ.replace(
            "Question 4: Which painter of drips worked on the floor of a barn?", "Question 4: Who?"
        ),
    ),
    "custom:reverse_newline": (
        "\n".join(sorted(AFRICA.split("\n"))),
        "Zimbabwe\nZambia\nUganda",
        AFRICA.replace("Kenya", "Spain"),
        AFRICA + "\nAlgeria",
    ),
    "custom:word_reverse": ("The bald eagle is the symbol.", "eagle bald"),
    "custom:character_reverse": ("The bald eagle is it.", "elgae eht", "elgaedlab"),
    "custom:sentence_alphabet": (STORY.replace("Bees", "Wasps"), "A. B. C.", STORY + " Again."),
    "custom:european_capitals_sort": (
        CAPITALS.replace("Kyiv, ", ""),
        CAPITALS.replace("Oslo, Tallinn", "Tallinn, Oslo"),
        "Paris, London",
    ),
    "custom:csv_city": (
        CITIES + '\n8,Peru,"Lima",2008,24',
        CITIES.replace("ID,", "Id,"),
        "Here:\n" + CITIES,
        CITIES.replace("2001", ""),
    ),
    "custom:csv_special_character": (
        PRODUCTS.replace('"', ""),
        PRODUCTS.replace("Tea & more", "Tea"),
        "ProductID",
    ),
    "custom:csv_quotes": (
        STUDENTS.replace('"Art"', "Art"),
        STUDENTS.replace("\t", ","),
        '"a"\t"b"',
    ),
    "custom:date_format_list": (
        DATES.replace("1815-06-18", "1815-02-30"),
        "1805-12-02",
        "Battles: " + DATES,
        ", ".join(f"1805-01-{day:02}" for day in range(1, 15)),
    ),
    "count:keywords_multiple": (
        "Art! Sea. Sky, sky, sky. Sun sun sun sun sun. Fog fog fog fog fog fog fog.",
        "Art art. Sea sea. Sky, sky, sky. Sun sun sun sun sun. Fog fog fog fog fog fog fog.",
    ),
    "words:keywords_specific_position": ("Alpha target beta.", "Alpha, beta retargeted.", "Target"),
    "words:words_position": ("Please whisper to me again!", "whisper whisper", "A whisper B."),
    "repeat:repeat_change": (
        "Write a short poem.  ",
        "Compose a short poem. Roses are red.",
        "WRITE a short poem.",
        "... a short poem.",
    ),
    "repeat:repeat_simple": (
        "Only output this sentence here.",
        "Sure. " + RULES["repeat:repeat_simple"].example.reply,
    ),
    "repeat:repeat_span": ("two three", "one two three four", "wo three four"),
    "format:title_case": ("The life of a River", "THE LIFE OF EVERY RIVER", "all small"),
    "format:output_template": (
        "My Answer: rain My Conclusion: stay in",
        "Well. My Answer: rain My Conclusion: stay Future Outlook: sun",
        "My Answer: [answer] My Conclusion: [conclusion] Future Outlook: [outlook]",
        "Future Outlook: sun My Answer: rain My Conclusion: stay",
    ),
    "format:no_whitespace": ("Rain is likely.", "Rain\u00a0is", "Rain\u2800is", "Rain\nis"),
}
