"""Words, sentences, languages, syllables and disguises, by hand-made cases."""

from __future__ import annotations

import pytest

from headrace.verify.instructions.disguise import folded, seen
from headrace.verify.instructions.languages import CODES, identify, is_in
from headrace.verify.instructions.prose import sentences_of, words_of
from headrace.verify.instructions.syllables import syllables

SAYINGS = {
    "ar": "هذا النهر طويل جدا وهو يجري إلى البحر من الجبال في كل فصل.",
    "bg": "Реката е много дълга и тя тече към морето, а хората се радват на водата.",
    "bn": "নদীটি খুব দীর্ঘ এবং এটি সমুদ্রের দিকে বয়ে যায়।",
    "cs": "Řeka je velmi dlouhá a teče do moře, které není daleko od města.",
    "da": "Floden er meget lang, og den løber ud i havet, men jeg ved ikke hvor.",
    "de": "Der Fluss ist sehr lang und er fließt in das Meer.",
    "el": "Ο ποταμός είναι πολύ μακρύς και κυλά προς τη θάλασσα.",
    "en": "The river is very long and it runs into the sea.",
    "es": "El río es muy largo y corre hacia el mar por toda la tierra.",
    "fa": "این رودخانه بسیار طولانی است و از کوه‌ها به دریا می‌رود.",
    "fi": "Joki on hyvin pitkä ja se virtaa mereen, mutta se ei ole syvä.",
    "fr": "Le fleuve est très long et il coule vers la mer avec les pluies.",
    "gu": "નદી ખૂબ લાંબી છે અને તે સમુદ્ર તરફ વહે છે.",
    "he": "הנהר ארוך מאוד והוא זורם אל הים.",
    "hi": "नदी बहुत लंबी है और वह समुद्र में जाती है।",
    "hu": "A folyó nagyon hosszú, és a tenger felé folyik, de nem mély.",
    "id": "Sungai ini sangat panjang dan mengalir ke laut dari gunung yang tinggi.",
    "it": "Il fiume è molto lungo e scorre verso il mare con la pioggia.",
    "ja": "川はとても長く、海へ流れています。",
    "kn": "ನದಿ ತುಂಬಾ ಉದ್ದವಾಗಿದೆ ಮತ್ತು ಅದು ಸಮುದ್ರಕ್ಕೆ ಹರಿಯುತ್ತದೆ.",
    "ko": "강은 매우 길고 바다로 흘러갑니다.",
    "ml": "നദി വളരെ നീളമുള്ളതാണ്, അത് കടലിലേക്ക് ഒഴുകുന്നു.",
    "mr": "ही नदी खूप लांब आहे आणि ती समुद्राकडे वाहते, पण ती खोल नाही.",
    "ne": "यो नदी धेरै लामो छ र यो समुद्रतिर बग्छ तर गहिरो छैन।",
    "nl": "De rivier is heel lang en zij stroomt naar de zee, maar het is niet diep.",
    "no": "Elva er veldig lang, og den renner ut i havet, men jeg vet ikke hva mye vann blir.",
    "pa": "ਨਦੀ ਬਹੁਤ ਲੰਬੀ ਹੈ ਅਤੇ ਇਹ ਸਮੁੰਦਰ ਵੱਲ ਵਗਦੀ ਹੈ।",
    "pl": "Rzeka jest bardzo długa i płynie do morza, ale nie jest głęboka.",
    "pt": "O rio é muito longo e corre para o mar com as chuvas do inverno.",
    "ro": "Râul este foarte lung și curge spre mare, dar nu este adânc.",
    "ru": "Река очень длинная, и она течёт в море, но это не глубоко.",
    "sv": "Floden är mycket lång och den rinner ut i havet, men den är inte djup.",
    "sw": "Mto huu ni mrefu sana na maji yake hufika katika bahari kwa siku nyingi.",
    "ta": "ஆறு மிகவும் நீளமானது, அது கடலை நோக்கி ஓடுகிறது.",
    "te": "నది చాలా పొడవుగా ఉంది మరియు అది సముద్రం వైపు ప్రవహిస్తుంది.",
    "th": "แม่น้ำยาวมากและไหลลงสู่ทะเล",
    "tr": "Nehir çok uzun ve denize doğru akar, ama bu kadar derin değil.",
    "uk": "Річка дуже довга, і вона тече до моря, але це не глибоко.",
    "ur": "یہ دریا بہت لمبا ہے اور یہ سمندر میں جاتا ہے۔",
    "vi": "Con sông rất dài và nó chảy ra biển, nhưng không sâu.",
    "zh": "这条河很长，它流向大海。",
}


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_sentence_tells_its_language(code: str) -> None:
    assert identify(SAYINGS[code]) == code
    assert is_in(SAYINGS[code], code)


def test_a_language_is_not_guessed() -> None:
    for text in ("", "42", "Xyzzy plugh", "Hm", "!!!"):
        assert identify(text) is None


def test_a_paragraph_in_another_language_spoils_the_whole() -> None:
    english = "And this is said in English for those of you who do not read that at all."
    german = " ".join([SAYINGS["de"]] * 5)
    assert is_in(german, "de")
    assert not is_in(f"{german}\n\n{english}", "de")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Don't stop.", 2),
        ("well-known facts", 2),
        ("a-b-c-d", 4),
        ("1,000.50 and 3.5", 3),
        ("नदी बहुत लंबी है", 4),
        ("snake_case", 2),
        ("e\u0301te\u0301", 1),
        ("川へ行く", 4),
        ("... --- !!!", 0),
    ],
)
def test_words_are_counted_as_a_reader_counts(text: str, count: int) -> None:
    assert len(words_of(seen(text).text)) == count


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mr. Fox met Dr. Wu. They spoke.", 2),
        ("It costs 3.50. Cheap!", 2),
        ("Wait... what? Yes.", 2),
        ("in 2020. Then it ended.", 2),
        ("one. two. three.", 3),
        ("# Title\nA text. Another.", 3),
        ("- item one\n- item two", 2),
        ("1. First thing.\n2. Second thing.", 2),
        ('He said "Stop!" and left. Then rain.', 2),
        ("これは川です。長いです。", 2),
        ("यह नदी है। वह लंबी है।", 2),
        ("We left at 5 p.m. and slept, e.g. in tents, etc. and so on.", 1),
        ("A line\nthat goes on.\n\nAnother block", 2),
        ("Wow!!! Really?! Yes.", 3),
        (". . . ! ?", 0),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, sentences: int) -> None:
    assert len(sentences_of(text)) == sentences


@pytest.mark.parametrize(
    ("word", "counts"),
    [
        ("river", {2}),
        ("stone", {1}),
        ("table", {2}),
        ("walked", {1}),
        ("wanted", {2}),
        ("bridges", {2}),
        ("lakes", {1}),
        ("beautiful", {3}),
        ("every", {2, 3}),
        ("rhythm", {2}),
        ("it's", {1}),
        ("didn't", {2}),
        ("fox's", {2}),
        ("well-known", {2}),
        ("technology", {4}),
        ("create", {2}),
        ("people", {2}),
        ("the", {1}),
        ("management", {3}),
        ("complexity", {4}),
    ],
)
def test_syllables_of_words_whose_number_is_known(word: str, counts: set[int]) -> None:
    assert syllables(word) == counts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("h\u200beron", "invisible characters"),
        ("two\u2060words", "invisible characters"),
        ("h\u200deron", "invisible characters"),
        ("\u202enoreh\u202c", "marks that turn the direction of writing"),
        ("h\u0435ron", "letters of another script inside Latin words"),
        ("ｈｅｒｏｎ", "letters in full width or mathematical style"),
        ("\U0001d421\U0001d41e", "letters in full width or mathematical style"),
    ],
)
def test_a_disguise_is_named(text: str, why: str) -> None:
    assert why in seen(text).disguises


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffA text with a mark before it.",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \u2764\ufe0f",
        "می\u200cرود",
        "soft\xadhyphen, naïve café, 5 \u00b5m, \u03b2-carotene",
        "これはＡＩです",
        "x\u00b2 + y\u00b2",
    ],
)
def test_an_honest_use_is_no_disguise(text: str) -> None:
    assert seen(text).disguises == ()
    assert not seen(text).hidden


def test_what_is_not_shown_is_gone_but_code_is_shown() -> None:
    assert seen("a <!-- b --> c").text == "a  c"
    assert seen("a <!-- b").text == "a "
    assert seen('a <span style="display: none">b</span> c').text == "a  c"
    assert seen("a <div hidden>b</div> c").text == "a  c"
    assert seen("a\n[//]: # (b)\nc").text == "a\n\nc"
    code = "```html\n<!-- shown -->\n```"
    assert seen(code).text == code
    assert not seen("a < b and b > c").hidden


def test_look_alikes_fold_to_latin_and_accents_stay() -> None:
    assert folded("b\u043e\u043ek") == "book"
    assert folded("ｂook") == "book"
    assert folded("résumé") == "résumé"
