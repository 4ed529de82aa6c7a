"""The kind `structured-output` and the tasks that it is audited with.

Known by the package only; the audit finds the kind by its entry point.
"""

from __future__ import annotations

from headrace.types import Json
from headrace.verify.kinds import Kind, Specimen, Specimens
from headrace.verify.structured.verifier import StructuredOutput

__all__ = ["KIND", "specimens"]

_CONTACT = Specimen(
    prompt=(
        'Extract the person as JSON with the keys "name" (string) and "age" (integer).\n'
        'Example: "Zed Moss is 7 years old." -> {"name": "Zed Moss", "age": 7}\n'
        'Text: "Our new colleague Ada Obi, who is 41, starts on Monday."'
    ),
    answer={"wrapping": "anywhere", "expected": {"name": "Ada Obi", "age": 41}},
    reference='{"name": "Ada Obi", "age": 41}',
    right=(
        'Here it is:\n```json\n{"age": 41.0, "name": "Ada Obi"}\n```\nDone.',
        '<think>{"name": "Zed Moss", "age": 7}</think>\n{"name": "Ada Obi", "age": 41}',
        'First {"name": "Zed Moss", "age": 7}, but rather {"name": "Ada Obi", "age": 41}.',
    ),
    wrong=(
        '{"name": "Ada Obi", "age": "41"}',
        '{"name": "Ada Obi", "age": 41, "starts": "Monday"}',
        '{"name": "Ada Obi", "age": 41} or {"name": "Ada Obi", "age": 40}',
        '{"name": "Ada Obi", "age": 41, "age": 41}',
        '{"name": "Ada Obi", "age": true}',
        '"{\\"name\\": \\"Ada Obi\\", \\"age\\": 41}"',
        '[{"name": "Ada Obi", "age": 41}]',
    ),
)

_PRODUCT_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "price": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
        "released": {"type": "string", "format": "date"},
        "sizes": {"type": "array", "items": {"enum": ["S", "M", "L"]}, "minItems": 2},
    },
    "required": ["sku", "price", "released", "sizes"],
    "additionalProperties": False,
}
_PRODUCT = Specimen(
    prompt=(
        "Invent a product. Answer with JSON only: its sku (three capital letters, a hyphen, four "
        "digits), a price above 0 in whole cents, the date of its release and at least two of "
        "the sizes S, M and L."
    ),
    answer={"wrapping": "raw", "schema": _PRODUCT_SCHEMA, "formats": True},
    reference='{"sku": "ABC-1234", "price": 19.99, "released": "2024-02-29", "sizes": ["S", "L"]}',
    right=('{"sizes": ["M", "S", "L"], "released": "1999-12-31", "price": 4, "sku": "XYZ-0000"}',),
    wrong=(
        '```json\n{"sku": "ABC-1234", "price": 1, "released": "2024-02-29", '
        '"sizes": ["S", "L"]}\n```',
        '{"sku": "ABC-1234", "price": 19.999, "released": "2024-02-29", "sizes": ["S", "L"]}',
        '{"sku": "ABC-1234", "price": 1, "released": "2023-02-29", "sizes": ["S", "L"]}',
        '{"sku": "ABC-1234", "price": 1, "released": "2024-02-29", "sizes": ["S"]}',
        '{"sku": "ABC-12345", "price": 1, "released": "2024-02-29", "sizes": ["S", "L"]}',
        '{"sku": "ABC-1234", "price": "1", "released": "2024-02-29", "sizes": ["S", "L"]}',
    ),
)

_EVENT = Specimen(
    prompt=(
        "Give the event as one JSON object (a code fence is fine, nothing else): title, start "
        "(ISO 8601), room {name, floor}, speakers (a list in any order), fee in euros.\n"
        "Text: The workshop Roots and Shoots begins on 5 March 2031 at 14:30 in room Linden on "
        "the 3rd floor. Nia Falk and Teo Brandt speak. It costs 12.50 euros."
    ),
    answer={
        "schema": {"type": "object", "required": ["title", "start", "room", "speakers", "fee"]},
        "expected": {
            "title": "Roots and Shoots",
            "start": "2031-03-05T14:30",
            "room": {"name": "Linden", "floor": 3},
            "speakers": ["Nia Falk", "Teo Brandt"],
            "fee": 12.5,
        },
        "fields": {
            "/title": {"compare": "text"},
            "/start": {"weight": 2.0},
            "/speakers": {"compare": "bag"},
            "/fee": {"compare": "number", "absolute": 0.005},
        },
    },
    reference=(
        '```json\n{"title": "Roots and Shoots", "start": "2031-03-05T14:30", "room": {"name": '
        '"Linden", "floor": 3}, "speakers": ["Nia Falk", "Teo Brandt"], "fee": 12.5}\n```'
    ),
    right=(
        '{"title": "roots and shoots", "start": "2031-03-05T14:30", "room": {"name": "Linden", '
        '"floor": 3}, "speakers": ["Teo Brandt", "Nia Falk"], "fee": 12.50}',
    ),
    wrong=(
        '{"title": "Roots and Shoots", "start": "2031-03-05T14:30", "room": {"name": "Linden", '
        '"floor": 3}, "speakers": ["Nia Falk", "Nia Falk"], "fee": 12.5}',
        '{"title": "Roots and Shoots", "start": "2031-05-03T14:30", "room": {"name": "Linden", '
        '"floor": 3}, "speakers": ["Nia Falk", "Teo Brandt"], "fee": 12.5}',
        '{"title": "Roots and Shoots", "start": "2031-03-05T14:30", "speakers": ["Nia Falk", '
        '"Teo Brandt"], "fee": 12.5}',
    ),
)

_SETTINGS = Specimen(
    prompt=(
        "Write these settings as YAML: the country code is NO, port 8080, verbose off (a "
        "boolean), hosts alpha and beta in this order. Keys: country, port, verbose, hosts."
    ),
    answer={
        "format": "yaml",
        "expected": {"country": "NO", "port": 8080, "verbose": False, "hosts": ["alpha", "beta"]},
        "partial": False,
    },
    reference='country: "NO"\nport: 8080\nverbose: false\nhosts:\n  - alpha\n  - beta\n',
    right=(
        "```yaml\ncountry: NO\nport: 8080\nverbose: false\nhosts: [alpha, beta]\n```",
        'port: 8080\nhosts: ["alpha", "beta"]\ncountry: NO\nverbose: False',
    ),
    wrong=(
        "country: NO\nport: 8080\nverbose: off\nhosts: [alpha, beta]",
        "country: NO\nport: '8080'\nverbose: false\nhosts: [alpha, beta]",
        "country: NO\nport: 8080\nverbose: false\nhosts: [beta, alpha]",
        "country: NO\nport: 8080\nverbose: false\nhosts: [alpha, beta]\n---\nport: 8081",
    ),
)

_ORDER = Specimen(
    prompt=(
        "Answer in XML, nothing else: the root order with attribute id, in it customer and, for "
        "each item, item with attribute sku and its quantity as text.\n"
        "Text: Order A-77 by Mira Kohl: 3 of P-1 and 12 of P-9."
    ),
    answer={
        "format": "xml",
        "expected": (
            '<order id="A-77"><customer>Mira Kohl</customer>'
            '<item sku="P-1">3</item><item sku="P-9">12</item></order>'
        ),
        "required": {"customer": None, "item": None},
    },
    reference=(
        '<order id="A-77">\n  <customer>Mira Kohl</customer>\n  <item sku="P-1">3</item>\n'
        '  <item sku="P-9">12</item>\n</order>'
    ),
    right=(
        '```xml\n<?xml version="1.0" encoding="UTF-8"?>\n<order id="A-77"><item sku="P-1">3</item>'
        '<item sku="P-9">12</item><customer>Mira Kohl</customer></order>\n```',
    ),
    wrong=(
        '<order id="A-77"><customer>Mira Kohl</customer><item sku="P-9">12</item>'
        '<item sku="P-1">3</item></order>',
        '<order id="A-77"><customer>Mira Kohl</customer><item sku="P-1">3</item>'
        '<item sku="P-9">12</item>',
        '<order id="A-77"><item sku="P-1">3</item><item sku="P-9">12</item></order>',
        '<!DOCTYPE order><order id="A-77"><customer>Mira Kohl</customer>'
        '<item sku="P-1">3</item><item sku="P-9">12</item></order>',
    ),
)

_STOCK = Specimen(
    prompt=(
        "Write a CSV table with the header name,count,price, one line for each product, in any "
        "order.\nText: We have 12 lamps for 7.50 each and 4 rugs, large, for 80 each "
        "(call them: lamp; rug, large)."
    ),
    answer={
        "format": "csv",
        "csv": {"columns": ["name", "count", "price"]},
        "expected": [
            {"name": "lamp", "count": 12, "price": 7.5},
            {"name": "rug, large", "count": 4, "price": 80},
        ],
        "fields": {"": {"compare": "bag"}},
    },
    reference='name,count,price\nlamp,12,7.50\n"rug, large",4,80\n',
    right=('```csv\nname,count,price\n"rug, large",4,80.0\n"lamp","12",7.5\n```',),
    wrong=(
        "name,count,price\nlamp,12,7.50\nrug, large,4,80\n",
        'count,name,price\n12,lamp,7.50\n4,"rug, large",80\n',
        'name,count,price\nlamp,12,7.50\nlamp,12,7.50\n"rug, large",4,80\n',
        "name,count,price\nlamp,12,7.50\n",
    ),
)


def specimens() -> Specimens:
    """One task for each format, and for each way of asking for JSON."""
    items = (_CONTACT, _PRODUCT, _EVENT, _SETTINGS, _ORDER, _STOCK)
    return Specimens("verify/structured-output", StructuredOutput(), items)


KIND = Kind(
    id=StructuredOutput.ref.id,
    version=StructuredOutput.ref.version,
    title="a JSON, YAML, XML or CSV document against a schema, an expected value, or both",
    limits=(
        "Documents of up to 100,000 characters (YAML: 30,000) and 64 levels; schemas refer to "
        "nothing outside themselves; of XML, the order among elements of different names is not "
        "compared; YAML merge keys and dates are plain text; a schema alone cannot say that a "
        "document is true."
    ),
    surfaces=StructuredOutput.surfaces,
    specimens=specimens,
)
