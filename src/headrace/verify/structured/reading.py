"""Reading documents of every format into JSON values: strictly, and with bounds.

YAML and XML are read by libraries that a text can keep busy for long: call those in the child
process only (`worker`). May be known by the verifier; knows no task.
"""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from typing import Any, Literal

import defusedxml.ElementTree
import yaml
from defusedxml.common import DefusedXmlException

from headrace.types import Json
from headrace.verify.strict_json import MAX_CHARACTERS, MAX_DEPTH, Malformed, checked
from headrace.verify.structured.ask import CsvRules

__all__ = ["MAX_NODES", "MAX_YAML", "Element", "element_value", "read_csv", "read_xml", "read_yaml"]

MAX_YAML = 30_000
"""Characters of YAML, whose reader is slow."""
MAX_NODES = 20_000
"""YAML values after all aliases are replaced by what they stand for."""

Element = ElementTree.Element

_TAG = "tag:yaml.org,2002:"
_SPACE = re.compile(r"\s+")
_SCALARS = frozenset({"bool", "int", "float", "null"})
_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]


def read_csv(text: str, rules: CsvRules) -> list[Json]:
    """Rows as objects by column, or as lists without a header; all cells are texts.

    Malformed for broken quotes, a row of another length, a column twice or without a name, and
    other columns than the rules name. Blank lines are left out.
    """
    _bounded(text)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=rules.delimiter, strict=True)
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise Malformed(f"no CSV: {error}") from None
    if not rows:
        raise Malformed("no row")
    first = rows[0]
    odd = next((number for number, row in enumerate(rows) if len(row) != len(first)), None)
    if odd is not None:
        raise Malformed(f"row {odd} has {len(rows[odd])} cells, the first has {len(first)}")
    if not rules.header:
        return checked(rows)
    if len(set(first)) != len(first) or not all(name.strip() for name in first):
        raise Malformed(f"columns without a name of their own: {first[:20]}", trick=True)
    if rules.columns is not None and first != rules.columns:
        raise Malformed(f"the columns are {first[:20]}, not {rules.columns}")
    return checked([dict(zip(first, row, strict=True)) for row in rows[1:]])


def read_xml(text: str) -> Element:
    """The root element; Malformed for a document type, entities, or too many levels."""
    _bounded(text)
    try:
        root = defusedxml.ElementTree.fromstring(text.strip(), forbid_dtd=True)
    except DefusedXmlException as error:
        raise Malformed(f"refused: {error}", trick=True) from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Malformed(f"no XML: {error}") from None
    waiting: list[tuple[int, Element]] = [(0, root)]
    while waiting:
        level, element = waiting.pop()
        if level > MAX_DEPTH // 2:
            raise Malformed(f"nested more than {MAX_DEPTH // 2} levels deep")
        waiting += [(level + 1, child) for child in element]
    return root


def element_value(root: Element) -> Json:
    """An element as JSON: `{tag: content}`, where content is the text if there is nothing else.

    Otherwise an object: attributes as `@name`, text (all of it, single-spaced) as `#text`, and
    children by tag, several of one tag as a list in their order. The order among different tags
    is not kept. Namespaces are written as ElementTree does: `{uri}tag`.

    >>> element_value(read_xml('<a n="1"><b>x</b><b>y</b></a>'))
    {'a': {'@n': '1', 'b': ['x', 'y']}}
    """
    return {root.tag: _content(root)}


def _content(element: Element) -> Json:
    pieces = [element.text or "", *(child.tail or "" for child in element)]
    text = _SPACE.sub(" ", "".join(pieces)).strip()
    if not element.attrib and len(element) == 0:
        return text
    found: dict[str, Json] = {f"@{name}": value for name, value in element.attrib.items()}
    if text:
        found["#text"] = text
    children: dict[str, list[Json]] = {}
    for child in element:
        children.setdefault(str(child.tag), []).append(_content(child))
    for tag, values in children.items():
        found[tag] = values[0] if len(values) == 1 else values
    return found


# --- YAML ----------------------------------------------------------------------------------


_CORE_FORMS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


def _loader(resolvers: _Resolvers) -> type[yaml.SafeLoader]:
    """A safe loader that takes plain texts for what `resolvers` (by first letter) say."""
    return type("_Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": resolvers})


_LOADERS = {
    "1.1": _loader(
        {
            first: [(tag, form) for tag, form in forms if tag.removeprefix(_TAG) in _SCALARS]
            for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
    ),
    "1.2": _loader(
        {
            first: [
                (_TAG + name, re.compile(rf"(?:{form})\Z"))
                for name, form, letters in _CORE_FORMS
                if first in letters
            ]
            for first in ["", *"~nNtTfF-+.0123456789"]
        }
    ),
}
"""By version. Dates, merge keys and the value key are plain texts in both."""


def read_yaml(text: str, version: Literal["1.1", "1.2"]) -> Json:
    """The one document in `text` as a JSON value.

    Keys are the text that was written. Malformed for several documents, duplicate keys, tags
    beyond JSON's types, numbers that are not finite, and aliases that stand for more than
    MAX_NODES values or for themselves.

    >>> read_yaml("no: no", "1.2"), read_yaml("no: no", "1.1")
    ({'no': 'no'}, {'no': False})
    """
    _bounded(text, MAX_YAML)
    try:
        loader = _LOADERS[version](text)
        node = loader.get_single_node()
        if node is None:
            raise Malformed("no document")
        return checked(_Values(loader, version).of(node, 0))
    except yaml.YAMLError as error:
        raise Malformed(f"no YAML: {error}") from None
    except RecursionError:
        raise Malformed(f"nested more than {MAX_DEPTH} levels deep") from None


class _Values:
    """Turns a graph of nodes into a tree of values, as long as that stays small."""

    def __init__(self, loader: Any, version: str) -> None:
        self._loader = loader
        self._version = version
        self._left = MAX_NODES

    def of(self, node: yaml.Node, level: int) -> Json:
        self._left -= 1
        if self._left < 0 or level > MAX_DEPTH:
            raise Malformed("too large once its aliases are replaced", trick=True)
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, kind)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.of(item, level + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode) and kind == "map":
            found: dict[str, Json] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise Malformed("a key that is no text")
                if key.value in found:
                    raise Malformed(f"the key {key.value[:80]!r} comes twice", trick=True)
                found[key.value] = self.of(value, level + 1)
            return found
        raise Malformed(f"the tag {node.tag[:80]!r}", trick=True)

    def _scalar(self, node: yaml.ScalarNode, kind: str) -> Json:
        text = node.value
        try:
            match kind:
                case "str":
                    return text
                case "null":
                    return None
                case "bool" | "int" | "float" if self._version == "1.1":
                    return self._loader.construct_object(node)
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
                case "float":
                    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                case _:
                    raise Malformed(f"the tag {node.tag[:80]!r}", trick=True)
        except Malformed:
            raise
        except (ValueError, KeyError):
            raise Malformed(f"{text[:80]!r} is no {kind}") from None


def _bounded(text: str, most: int = MAX_CHARACTERS) -> None:
    if len(text) > most:
        raise Malformed(f"{len(text)} characters, more than {most}")
