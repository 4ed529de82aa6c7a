"""What the talk is about: things, materials and matters, and doings, each with its own words.

No two topics share a word, so a reply to one is never taken for a reply to another. May be known
by the domains of this pack; knows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TOPICS", "Kind", "Topic", "plural"]

Kind = Literal["thing", "matter", "doing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic in sentences: `one` with its article ("a bicycle", "rain", "growing roses"), `many`
    in general ("bicycles", "rain", "growing roses"), its `key` word in lower case, and all `words`
    of which a reply about it says one."""

    kind: Kind
    one: str
    many: str
    key: str
    words: tuple[str, ...]

    @property
    def are(self) -> str:
        """The verb that follows `many`."""
        return "are" if self.kind == "thing" else "is"


def plural(noun: str) -> str:
    """The plain plural.

    >>> [plural(noun) for noun in ("bridge", "bus", "tomato", "party", "key")]
    ['bridges', 'buses', 'tomatoes', 'parties', 'keys']
    """
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun.endswith(("s", "x", "ch", "sh", "ato")):
        return f"{noun}es"
    return f"{noun}s"


_THINGS = """
airplane airport ant apple bakery banana battery beach bear bee bicycle bridge bus butterfly
cactus calendar camel camera candle castle cat clock coin comet compass computer cow crocodile
desert dictionary dog dolphin drum duck eagle earthquake elephant elevator engine factory farm
flower flute forest fox frog galaxy garden glacier goat guitar hammer helicopter horse hospital
island kangaroo kettle key knife/knives ladder lake lamp lemon library lighthouse lion magnet map
market microscope mirror mountain museum mushroom newspaper octopus owl pancake park parrot
passport pencil penguin piano pig pizza planet pumpkin rabbit rainbow restaurant river robot
rocket sandwich satellite school seed shark ship snake song spider squirrel star strawberry
submarine telephone telescope theater tiger tomato tornado/tornadoes tractor train tree trumpet
turtle umbrella violin volcano/volcanoes waterfall whale windmill wolf/wolves zoo
"""

_MATTERS = """
astronomy biology bread butter cheese chemistry chess chocolate coffee cotton courage democracy
electricity fog football friendship garlic geography glass gold gravity happiness history honey
iron kindness laughter leather lightning magnetism mathematics milk money music oxygen paper pasta
patience pepper philosophy photography plastic poetry rain recycling rice rubber salt silk silver
sleep snow soup sugar sunlight tea tennis thunder wind wool
"""

_DOINGS = """
baking cookies: cookie
boiling eggs: egg
brewing lemonade: lemonade
building a treehouse: treehouse
buying a used car: car
caring for a goldfish: goldfish
choosing a mattress: mattress
cleaning windows: window
cooking noodles: noodle
feeding wild birds: bird
fixing a leaky faucet: faucet
flying a kite: kite
giving a speech: speech
growing roses: rose
hosting a party: party
ironing a shirt: shirt
keeping a houseplant alive: houseplant
learning origami: origami
making a salad: salad
moving to a new apartment: apartment
packing a suitcase: suitcase
painting a fence: fence
planning a picnic: picnic
polishing shoes: shoe
preparing for an interview: interview
remembering names: name
renting a bungalow: bungalow
repairing a zipper: zipper
running a marathon: marathon
saving energy: energy
setting up a tent: tent
sewing on a button: button
studying for an exam: exam
telling jokes: joke
tidying a desk: desk
training a puppy: puppy
washing a sweater: sweater
working with clay: clay
wrapping a gift: gift
writing an email: email
camping: camp camped camper
cycling: cycle cycled cyclist
dancing: dance danced dancer
fishing: fish fished fisherman
gardening: gardener
hiking: hike hiked hiker
jogging: jog jogged jogger
juggling: juggle juggled juggler
knitting: knit knitted knitter
meditating: meditate meditation
sailing: sail sailed sailor
singing: sing sang singer
skiing: ski skied skier
stretching: stretch stretched
surfing: surf surfed surfer
swimming: swim swam swimmer
"""


def _thing(noun: str) -> Topic:
    one, _, many = noun.partition("/")
    many = many or plural(one)
    return Topic(
        kind="thing",
        one=f"{'an' if one[0] in 'aeiou' else 'a'} {one}",
        many=many,
        key=one,
        words=(one, many),
    )


def _doing(line: str) -> Topic:
    phrase, _, stems = line.partition(": ")
    words = {word for stem in stems.split() for word in (stem, plural(stem))}
    if " " not in phrase:
        words.add(phrase)
    key = phrase if " " not in phrase else stems
    return Topic(kind="doing", one=phrase, many=phrase, key=key, words=tuple(sorted(words)))


TOPICS: tuple[Topic, ...] = (
    *map(_thing, _THINGS.split()),
    *(
        Topic(kind="matter", one=name, many=name, key=name, words=(name, plural(name)))
        for name in _MATTERS.split()
    ),
    *map(_doing, _DOINGS.strip().splitlines()),
)
"""All topics, in a fixed order."""
