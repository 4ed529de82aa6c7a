"""The trick corpus: known ways to be paid without solving a task, one small file each.

`tricks/<surface>/<name>.trick` is a header of `title`, `story` and `seen` (a line that begins
with two spaces goes on with the one before), a line `---`, and the text of the attempt as a
policy would write it. `{{name}}` stands for what a policy knows: `{{prompt}}`, and whatever a
verifier's `hints` offer. May be known by the audit, benchmarks and the command line; knows no
verifier.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from headrace.errors import UsageError
from headrace.verify.kinds import SURFACES, Surface

__all__ = ["Corpus", "Trick", "load", "parse", "shipped"]

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\{\{([a-z][a-z0-9_]*)\}\}")
_KEYS = ("title", "story", "seen")
_SUFFIX = ".trick"
_LARGEST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trick:
    """A known trick: what it is called, what it does and why it works, where it was reported.

    `id` is surface and name; `needs` are the names of its placeholders.

    >>> trick = parse(
    ...     "title: T\\nstory: S\\nseen: by construction\\n---\\nIs it {{x}}?\\n",
    ...     surface="text",
    ...     name="t",
    ... )
    >>> trick.text_for({"x": "7"}), trick.text_for({})
    ('Is it 7?', None)
    """

    surface: Surface
    name: str
    title: str
    story: str
    seen: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.surface}/{self.name}"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(_PLACEHOLDER.findall(self.text))

    def text_for(self, known: Mapping[str, str]) -> str | None:
        """The attempt with what the policy knows put in; None where it needs more than that."""
        if not self.needs <= set(known):
            return None
        return _PLACEHOLDER.sub(lambda match: known[match[1]], self.text)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tricks in the order of surface and name; `digest` (SHA-256 hex) is that of all files."""

    tricks: tuple[Trick, ...]
    digest: str

    def against(self, surfaces: Iterable[Surface]) -> tuple[Trick, ...]:
        """The tricks of these surfaces, and those of "text", which every verifier must bear."""
        wanted = {"text", *surfaces}
        return tuple(trick for trick in self.tricks if trick.surface in wanted)


@cache
def shipped() -> Corpus:
    """The tricks that come with headrace."""
    return load(files("headrace.verify.audit").joinpath("tricks"))


def load(directory: Traversable) -> Corpus:
    """All tricks under `directory`; UsageError naming the file that is not one."""
    tricks: list[Trick] = []
    digest = hashlib.sha256()
    for folder in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if not folder.is_dir():
            continue
        if folder.name not in SURFACES:
            raise UsageError(f"no surface {folder.name!r}", where=str(folder))
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
            trick, raw = _read(file, folder.name)
            tricks.append(trick)
            digest.update(f"{trick.id} {len(raw)}\n".encode() + raw)
    return Corpus(tuple(tricks), digest.hexdigest())


def _read(file: Traversable, surface: Surface) -> tuple[Trick, bytes]:
    where = str(file)
    if not file.name.endswith(_SUFFIX) or (isinstance(file, Path) and file.is_symlink()):
        raise UsageError("not a trick: a plain file NAME.trick is wanted", where=where)
    raw = file.read_bytes()
    if len(raw) > _LARGEST:
        raise UsageError(f"a trick of {len(raw):,} bytes", where=where)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8", where=where) from error
    name = file.name.removesuffix(_SUFFIX)
    return parse(text, surface=surface, name=name, where=where), raw


def parse(source: str, *, surface: Surface, name: str, where: str = "") -> Trick:
    """The trick that a file says; UsageError for anything that is not exactly in its form."""
    head, rule, text = source.partition("\n---\n")
    if not rule:
        raise UsageError("no line `---` between header and attempt", where=where)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not lower-case-with-dashes", where=where)
    fields: dict[str, str] = {}
    key = ""
    for line in head.splitlines():
        if line.startswith("  ") and key:
            fields[key] += " " + line.strip()
            continue
        key, colon, value = line.partition(":")
        if not colon or key not in _KEYS or key in fields:
            raise UsageError(f"{line!r} is no title, story or seen", where=where)
        fields[key] = value.strip()
    missing = [key for key in _KEYS if not fields.get(key)]
    if missing:
        raise UsageError(f"it does not say: {', '.join(missing)}", where=where)
    text = text.removesuffix("\n")
    if not text.strip():
        raise UsageError("an empty attempt is no trick", where=where)
    return Trick(surface=surface, name=name, text=text, **fields)
