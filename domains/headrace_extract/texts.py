"""Five tiers of texts to read records from, each with the record and the schema it must match.

A tier is a pure function of a random generator. Values that a careless reader would take
(deliveries before, cancelled lines, other people's numbers) are named as `decoy`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.types import Json
from headrace_extract.words import CITIES, EVENTS, FIRST, GOODS, LAST, MONTHS, ROOMS, THINGS

__all__ = ["TIERS", "Extraction", "Tier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """A text, the record in it, and a record that only a careless reader would see."""

    text: str
    record: Json
    decoy: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One rung: the schema of its records, what to know beyond it, examples, and its maker.

    `fields` are rules of the verifier `structured-output`, by JSON pointer.
    """

    title: str
    schema: Json
    notes: str
    examples: tuple[tuple[str, Json], ...]
    make: Callable[[random.Random], Extraction]
    fields: Mapping[str, Json] = field(default_factory=dict[str, Json])


def _record(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer"}
_NUMBER: Json = {"type": "number"}


def _person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _two(rng: random.Random, words: Sequence[str]) -> list[str]:
    return rng.sample(words, 2)


# --- tier 0: a name and a number -----------------------------------------------------------


def _contact(rng: random.Random) -> Extraction:
    name, age = _person(rng), rng.randint(18, 89)
    first = name.split()[0]
    text = rng.choice(
        (
            f"{name} is {age} years old.",
            f"{name}, aged {age}, lives next door.",
            f"My neighbour {name} turned {age} last week.",
            f"At {age}, {name} still goes swimming every day.",
            f"This is {name}. {first} is {age} years old.",
            f"The winner is {name} ({age}).",
        )
    )
    return Extraction(
        text=text, record={"name": name, "age": age}, decoy={"name": first, "age": age}
    )


# --- tier 1: four fields -------------------------------------------------------------------


def _order(rng: random.Random) -> Extraction:
    customer, count = _person(rng), rng.randint(2, 60)
    item, city = rng.choice(THINGS), rng.choice(CITIES)
    text = rng.choice(
        (
            f"{customer} from {city} orders {count} {item}.",
            f"Please send {count} {item} to {customer} in {city}.",
            f"New order: {count} {item}, for {customer}, to be shipped to {city}.",
            f"In {city}, {customer} is waiting for {count} {item}.",
            f"We sold {count} {item} to {customer}, who lives in {city}.",
        )
    )
    record = {"customer": customer, "item": item, "quantity": count, "city": city}
    return Extraction(text=text, record=record, decoy={**record, "quantity": str(count)})


# --- tier 2: nested objects ----------------------------------------------------------------


def _event(rng: random.Random) -> Extraction:
    title, (room, other) = rng.choice(EVENTS), _two(rng, ROOMS)
    host, guest = _person(rng), _person(rng)
    floor, phone = rng.randint(1, 9), f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}"
    date = f"20{rng.randint(31, 49)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    text = rng.choice(
        (
            f"The {title} takes place on {date} in room {room} on floor {floor}. Your host is "
            f"{host}, phone {phone}.",
            f"{host} invites you to the {title}: {date}, floor {floor}, room {room}. Questions? "
            f"Call {phone}.",
            f"On {date} there is the {title}. Come to room {room} (floor {floor}) and ask for "
            f"{host}, who answers at {phone}.",
            f"Save the date {date}! {title}, hosted by {host} ({phone}). You find us on floor "
            f"{floor}, in room {room}.",
        )
    )
    record = {
        "title": title,
        "date": date,
        "place": {"room": room, "floor": floor},
        "host": {"name": host, "phone": phone},
    }
    decoy = {**record, "place": {"room": other, "floor": floor}, "host": {"name": guest}}
    return Extraction(text=text, record=record, decoy=decoy)


# --- tier 3: several records ---------------------------------------------------------------


def _invoice(rng: random.Random) -> Extraction:
    number, customer = f"{rng.choice('ABCDEFGH')}-{rng.randint(100, 999)}", _person(rng)
    lines: list[dict[str, Json]] = [
        {
            "item": item,
            "quantity": rng.randint(2, 40),
            "price": rng.randint(2, 60) + rng.choice((0.25, 0.5, 0.75)),
        }
        for item in rng.sample(THINGS, rng.randint(2, 4))
    ]
    said = [
        rng.choice(
            (
                f"{line['quantity']} {line['item']} at {line['price']:.2f} each",
                f"{line['quantity']} {line['item']} ({line['price']:.2f} apiece)",
                f"{line['item']}, {line['quantity']} of them, for {line['price']:.2f} each",
            )
        )
        for line in lines
    ]
    listed = f"{'; '.join(said[:-1])}; and {said[-1]}"
    text = rng.choice(
        (
            f"Invoice {number} for {customer}: {listed}.",
            f"{customer} bought {listed}. The invoice has the number {number}.",
            f"We bill {customer} for {listed}. Invoice: {number}.",
        )
    )
    record = {"number": number, "customer": customer, "lines": lines}
    return Extraction(text=text, record=record, decoy={**record, "lines": lines[:-1]})


# --- tier 4: distractors, units and dates --------------------------------------------------


def _delivery(rng: random.Random) -> Extraction:
    (customer, clerk), (city, depot) = (_person(rng), _person(rng)), _two(rng, CITIES)
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2031, 2049)
    date = rng.choice(
        (
            f"{day} {MONTHS[month - 1]} {year}",
            f"{MONTHS[month - 1]} {day}, {year}",
            f"{day:02d}.{month:02d}.{year}",
        )
    )
    phone = f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}" if rng.random() < 0.5 else None
    goods = rng.sample(GOODS, rng.randint(2, 3) + 1)
    lines: list[dict[str, Json]] = []
    said: list[str] = []
    for item in goods:
        grams, cents = rng.randint(3, 79) * 250, rng.randint(4, 180) * 25
        weight = rng.choice((f"{grams / 1000:g} kg", f"{grams} g"))
        price = rng.choice((f"{cents / 100:.2f} euros", f"EUR {cents / 100:.2f}", f"{cents} cents"))
        lines.append({"item": item, "kg": grams / 1000, "price": cents / 100})
        said.append(f"{weight} of {item} for {price}")
    cancelled = rng.randrange(len(goods))
    sentences = [
        f"Hello {clerk.split()[0]}, {customer} in {city} would like "
        f"{'; '.join(said[:-1])}; and {said[-1]}.",
        f"Our depot in {depot} delivers on {date}.",
        f"The last delivery there was in {MONTHS[rng.randrange(12)]} {year - 1}.",
    ]
    if phone is not None:
        sentences.append(rng.choice((f"The customer's phone is {phone}.", f"Call {phone} before.")))
    sentences.append(f"Correction: leave out the {goods[cancelled]}, that was cancelled.")
    record: dict[str, Json] = {
        "customer": customer,
        "city": city,
        "date": f"{year}-{month:02d}-{day:02d}",
        "phone": phone,
        "lines": [line for index, line in enumerate(lines) if index != cancelled],
    }
    decoy = {**record, "lines": lines}
    return Extraction(text=" ".join(sentences), record=record, decoy=decoy)


_CENTS: Json = {"compare": "number", "absolute": 0.001}

TIERS = (
    Tier(
        title="a name and an age",
        schema=_record(name=_TEXT, age=_WHOLE),
        fields={"/name": {"weight": 2.0}},
        notes="",
        examples=(
            ("Zed Moss is 7 years old.", {"name": "Zed Moss", "age": 7}),
            ("Have you met Yul Quay? She is 12 now.", {"name": "Yul Quay", "age": 12}),
            ("The oldest guest was Ann Ito (97).", {"name": "Ann Ito", "age": 97}),
        ),
        make=_contact,
    ),
    Tier(
        title="an order in one sentence",
        schema=_record(customer=_TEXT, item=_TEXT, quantity=_WHOLE, city=_TEXT),
        notes="",
        examples=(
            (
                "Zed Moss of Xanten wants 99 bells.",
                {"customer": "Zed Moss", "item": "bells", "quantity": 99, "city": "Xanten"},
            ),
            (
                "Can you bring 85 drums to Yul Quay? The shop is in Evora.",
                {"customer": "Yul Quay", "item": "drums", "quantity": 85, "city": "Evora"},
            ),
        ),
        make=_order,
    ),
    Tier(
        title="an event with a place and a host",
        schema=_record(
            title=_TEXT,
            date=_TEXT,
            place=_record(room=_TEXT, floor=_WHOLE),
            host=_record(name=_TEXT, phone=_TEXT),
        ),
        notes="Write the room by its name only.",
        examples=(),
        make=_event,
    ),
    Tier(
        title="an invoice of several lines",
        schema=_record(
            number=_TEXT,
            customer=_TEXT,
            lines={"type": "array", "items": _record(item=_TEXT, quantity=_WHOLE, price=_NUMBER)},
        ),
        notes="Keep the lines in the order of the text; the price is for one piece.",
        examples=(),
        make=_invoice,
        fields={"/lines/*/price": _CENTS},
    ),
    Tier(
        title="a delivery with corrections, units and dates",
        schema=_record(
            customer=_TEXT,
            city=_TEXT,
            date={"type": "string", "format": "date"},
            phone={"type": ["string", "null"]},
            lines={"type": "array", "items": _record(item=_TEXT, kg=_NUMBER, price=_NUMBER)},
        ),
        notes=(
            "Write the date of the delivery as YYYY-MM-DD (12.03.2031 is 12 March), weights in kg "
            "and prices in euros, as numbers. Keep the lines in the order of the text, without "
            "cancelled ones. The city is the customer's. The phone is null if none is given."
        ),
        examples=(),
        make=_delivery,
        fields={"/lines/*/price": _CENTS, "/lines/*/kg": {"compare": "number", "absolute": 1e-6}},
    ),
)
