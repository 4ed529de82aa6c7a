"""Closed lists of English that instructions speak of: stop words, names, pronouns, verbs, places.

Facts, folded to lower case. The verbs are common ones; `is_verb` knows their regular forms and
misses what is rare. May be known by the rules; knows none.
"""

from __future__ import annotations

import re

__all__ = [
    "AFRICA",
    "CAPITALS",
    "CONJUNCTIONS",
    "MINOR_WORDS",
    "NAMES",
    "PRONOUNS",
    "STOP_WORDS",
    "is_verb",
]


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


CONJUNCTIONS = _listed("for and nor but or yet so")

_NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte"
    " Alexander Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace"
    " Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas"
    " Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan"
    " Stella Jonathan"
)
NAMES = tuple(_NAMES.split())
"""The names that the instruction lists, in its order."""

PRONOUNS = _listed(
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him"
    " his himself she her hers herself it its itself they them their theirs themselves"
)

STOP_WORDS = _listed(
    "i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself"
    " yourselves he he'd he'll he's him his himself she she'd she'll she's her hers herself"
    " it it'd it'll it's its itself they they'd they'll they're they've them their theirs"
    " themselves what which who whom this that that'll these those am is are was were be been"
    " being have has had having do does did doing a an the and but if or because as until"
    " while of at by for with about against between into through during before after above"
    " below to from up down in out on off over under again further then once here there when"
    " where why how all any both each few more most other some such no nor not only own same"
    " so than too very s t can will just don don't should should've now d ll m o re ve y ain"
    " aren aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't haven"
    " haven't i'd i'll i'm i've isn isn't ma mightn mightn't mustn mustn't needn needn't shan"
    " shan't shouldn shouldn't wasn wasn't weren weren't won won't wouldn wouldn't we'd we'll"
    " we're we've"
)

MINOR_WORDS = _listed(
    "a an the and but or nor for so yet as at by from if in into of off on onto out over per"
    " than to up via with vs"
)
"""What title case may leave in lower case: articles, conjunctions, short prepositions."""

_BASES = (
    "accept access achieve act adapt add address adjust adopt advance advise affect agree"
    " aid aim air align allow alter analyse analyze announce answer anticipate apply"
    " appreciate approach argue arrange arrive ask assemble assert assess assign assist"
    " assume attach attempt attend avoid awaken back bake balance base battle beam bear beat"
    " become begin behold believe bend bind bite blame blend bless block blow boil book boost"
    " borrow bounce bow break breathe breed brew bring broaden browse brush build burn button"
    " buy calculate call calm camp care carry cast catch cause celebrate challenge change"
    " chant charge chart chase check cheer chew choose chop claim clarify classify clean"
    " clear climb close coach coat code collect comb combine come comfort commit communicate"
    " compare compete complete compose comprehend compute conceive concentrate conclude"
    " conduct confirm connect conquer consider construct consult contact contain contemplate"
    " contest continue contrast contribute control convert convey convince cook cool cope"
    " copy correct correlate count cover craft crash crawl create cross crown crush cry"
    " cultivate curl cut cycle dance dare deal debug decide declare decrease deepen define"
    " deliver delve demand demolish demonstrate deny depend derive describe deserve design"
    " desire destroy detect determine develop devise dial differ dig dip discover discuss"
    " display dispute distinguish distribute dive divide document double doubt draft draw"
    " dream dress drift drill drink drive drop dry dust dwell earn eat echo edge edit educate"
    " elect elevate eliminate embark embrace emerge emphasize employ empower enable encounter"
    " encourage end endorse endure engage enhance enjoy enrich ensure enter entertain equal"
    " equip erase erode escape escort establish estimate evaluate evolve exaggerate examine"
    " exceed exchange exclude excuse execute exercise exist expand expect experience"
    " experiment explain exploit explore export expose express extend face facilitate fade"
    " fail fall fancy fear feature feed feel fetch fight file fill filter finance find fine"
    " finish fish fit fix flag flee flip float flood flourish flow fly focus fold follow"
    " force foresee forget forgive form formulate foster free freeze fry fund gain gamble"
    " garden gather gauge gaze generate get gift give glance glide go govern grab grade"
    " graduate grant grasp graze greet grind grip group grow guarantee guard guess guide"
    " handle hang happen harm harness harvest haunt heal hear heat heed help hesitate hide"
    " highlight hike hire hit hold honor hop hope host hug hum hunt hurry identify ignore"
    " illustrate imagine immerse implement imply import impose improve include incorporate"
    " increase indicate infer influence inform inherit inhibit initiate innovate inquire"
    " insert inspect inspire install instruct insult integrate intend interact interpret"
    " intervene introduce invent invest investigate invite involve irritate issue itemize"
    " iterate jog join joke journey judge jump justify keep kick kneel knit know label lack"
    " ladle land last laugh launch lay layer lead lean leap learn leave lend let level"
    " leverage license lie lift light like limit limp link list listen live load loan locate"
    " lock look lose love lower lunch mail maintain make manage map march mark mask master"
    " match matter mean measure meet melt mend mention merge mind mine minimize mix model"
    " modify monitor motivate mount mourn move mow mulch multiply nail name navigate need"
    " negotiate nestle nod note notice nourish number nurture obey oblige observe obtain"
    " occur offer open operate opt optimize order organize outline overcome overlook oversee"
    " owe own pack paddle paint participate pass paste patch pause pay peel perceive perform"
    " permit persist persuade phone phrase pick picture pile pin pitch place plan plant play"
    " plot plow plunge point polish ponder pose possess post pound pour practice praise pray"
    " preach precede predict prefer prepare present preserve press prevent print prioritize"
    " probe proceed process produce program promise promote propose protect prove provide"
    " prune publish pull pump punish purchase pursue push put question quit quiz quote race"
    " raise rank rate reach react read realize reason reassess rebel rebuild recall receive"
    " recite recognize recommend reconsider record recover recycle reduce refer refine"
    " reflect reform refresh refuse register regret rehearse reign reinforce reject rejoice"
    " relate relax release rely remain remark remember remind remove render rent repair"
    " repeat replace reply report represent request require research resemble reside resist"
    " resolve respect respond rest restore result retain retire retreat retrieve return"
    " reveal review revise revive reward rewrite rhyme ride ring rinse rise risk roam roast"
    " rock roll row rub rule run rush sail sample sand save say scale scan scatter schedule"
    " score scrape scream scrub search season secure see seed seek seem select sell send"
    " sense separate serve set settle shake shape share shave shelter shift shine ship shoot"
    " shop shout show shut sign simplify sing sink sip sit sketch skip sleep slice slide slow"
    " smell smile soak soar solve sort sound spark speak specify spell spend spill spin split"
    " spot spray spread spring stage stain stamp stand stare start state stay steal steer"
    " step stick stir stitch stop store strengthen stretch strike strip strive structure"
    " struggle study style submit subscribe substitute subtract succeed suck suffer suggest"
    " suit sum summarize supply support suppose surf surge surround survive suspect sustain"
    " swallow swap sway swear sweep swim swing switch tackle tag tailor take talk tame tap"
    " target taste teach tear telephone tell tend test thank think thread thrive throw tick"
    " tidy tie tip toast tolerate touch tour tow trace track trade trail train transfer"
    " transform translate trap travel treat trigger trim trust try tune turn twist type"
    " uncover understand undertake unfold unite unleash unlock unpack unveil update upgrade"
    " uphold upload urge use usher utilize validate value vanish vary venture verify view"
    " violate visit visualize volunteer vote wait wake walk wander want warm warn wash waste"
    " watch water wear weave wed weed weep weigh welcome whip whisper widen win wipe wire"
    " wish witness wonder work worry wrap write yell yield zoom"
)
_IRREGULAR = (
    "am is are was were be been being has have had do does did done can could will would shall"
    " should may might must let's ate began begun bent bound bought broke broken brought built"
    " burnt came caught chose chosen cried dealt drew drawn drank drunk drove driven fell fallen"
    " felt fled flew flown fought forgot forgotten found froze frozen gave given got gotten went"
    " gone grew grown held heard hid hidden kept knew known laid lain led left lent lit lost made"
    " meant met paid rang ran read rode ridden rose risen said sang sung sank sunk sat saw seen"
    " sent shook shaken shone shot slept slid sold sought spent spoke spoken spun stole stolen"
    " stood strove striven struck stuck swam swum swept swore sworn swung taken taught tore torn"
    " thought threw thrown told took tried understood won woke woken wore worn wove woven wept"
    " wrote written don't doesn't didn't isn't aren't wasn't weren't can't couldn't won't wouldn't"
    " shouldn't dying lying tying"
)
_GERUND = re.compile(r"[a-z]*[aeiouy][a-z]*[a-z]ing")
_NO_GERUND = _listed("morning evening nothing something anything everything during ceiling darling")
_VERBS = frozenset(_BASES.split())
_FORMS = frozenset(_IRREGULAR.split())


def is_verb(word: str) -> bool:
    """Whether a word, in lower case, is a form of a common verb.

    Any word that ends in -ing after a vowel is taken for one, but for a few nouns.

    >>> [is_verb(word) for word in ("imagine", "stopped", "whirring", "tries", "table", "nothing")]
    [True, True, True, True, False, False]
    """
    if word in _VERBS or word in _FORMS or (_GERUND.fullmatch(word) and word not in _NO_GERUND):
        return True
    stems: list[str] = []
    for ending in ("ing", "ed", "es", "s", "d"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= 2:
            stems += [stem, f"{stem}e"]
            if len(stem) > 3 and stem[-1] == stem[-2]:
                stems.append(stem[:-1])
            if stem.endswith("i"):
                stems.append(f"{stem[:-1]}y")
    return any(stem in _VERBS for stem in stems)


CAPITALS: tuple[tuple[str, ...], ...] = (
    ("reykjavik",),
    ("helsinki",),
    ("oslo",),
    ("tallinn",),
    ("stockholm",),
    ("riga",),
    ("moscow",),
    ("copenhagen",),
    ("vilnius",),
    ("minsk",),
    ("dublin",),
    ("berlin",),
    ("amsterdam",),
    ("warsaw",),
    ("london",),
    ("brussels",),
    ("kyiv", "kiev"),
    ("prague",),
    ("luxembourg", "luxembourg city"),
    ("paris",),
    ("vienna",),
    ("bratislava",),
    ("budapest",),
    ("vaduz",),
    ("chisinau",),
    ("bern", "berne"),
    ("ljubljana",),
    ("zagreb",),
)
"""European capitals north of 45 degrees from north to south (degrees of their centres: Reykjavik
64.15 ... Brussels 50.85, Kyiv 50.45, Prague 50.08 ... Zagreb 45.81), with other spellings."""

_STATES = (
    "algeria,angola,benin,botswana,burkina faso,burundi,cabo verde/cape verde,cameroon,"
    "central african republic,chad,comoros,congo/republic of the congo/congo-brazzaville/"
    "republic of congo/congo republic/congo (brazzaville)/congo republic of the/"
    "congo (republic of the),democratic republic of the congo/democratic republic of congo/"
    "congo-kinshasa/dr congo/drc/congo (kinshasa)/congo democratic republic of the/"
    "congo (democratic republic of the),cote d'ivoire/ivory coast,djibouti,egypt,"
    "equatorial guinea,eritrea,eswatini/swaziland,ethiopia,gabon,gambia/the gambia,ghana,"
    "guinea,guinea-bissau/guinea bissau,kenya,lesotho,liberia,libya,madagascar,malawi,mali,"
    "mauritania,mauritius,morocco,mozambique,namibia,niger,nigeria,rwanda,"
    "sao tome and principe,senegal,seychelles,sierra leone,somalia,south africa,south sudan,"
    "sudan,tanzania,togo,tunisia,uganda,zambia,zimbabwe"
)
AFRICA = tuple(tuple(names.split("/")) for names in _STATES.split(","))
"""The 54 states of Africa, with other spellings."""
