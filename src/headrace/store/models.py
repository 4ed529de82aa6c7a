"""Model artifacts on the disk: written whole or not at all, found again, and their family tree.

    RUN/artifact/  RUN/stages/NAME/artifact/  RUNS/models/NAME/
      card.json     what it is (`headrace.store.cards`), with the SHA-256 of every file
      README.md     the same for people; they may edit it, and nothing reads it
      model/        weights (safetensors only), configuration and tokenizer

Knows files and cards; what is in the weights is the business of `headrace.policy`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from headrace.errors import ModelError, StorageError, UsageError
from headrace.store.card_page import card_page
from headrace.store.cards import Card, FileDigest, Parent, identity, parse_card, spell_card
from headrace.store.files import (
    fsync_directory,
    storage_guard,
    write_atomic,
    write_json_atomic,
)
from headrace.store.runs import MODELS

__all__ = [
    "Ancestor",
    "Artifact",
    "Entry",
    "ModelRegistry",
    "read_card",
    "write_artifact",
]

CARD = "card.json"
PAGE = "README.md"
WEIGHTS = "model"

_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".model", ".jinja", ".md"})
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_TEMPORARY = ".tmp-"
_REPLACED = ".replaced-"
_DEEPEST = 64
_BROKEN_HINT = "restore it from a backup, or make the model again"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model that was made here: where it lies, and its card."""

    path: Path
    card: Card

    @property
    def weights(self) -> Path:
        """The directory that a model is loaded from."""
        return self.path / WEIGHTS


# --- writing -------------------------------------------------------------------------------


def write_artifact(directory: Path, card: Card, fill: Callable[[Path], None]) -> Artifact:
    """Make an artifact at `directory` and return it once it is durable.

    `fill` puts weights, configuration and tokenizer into the empty directory it is given. The
    card's `id`, `created` and `files` are filled in. A failure, an interrupt or a kill leaves
    nothing that could be taken for an artifact, and one that was there before as it was, or (a
    kill in an instant) aside until the next writing.

    Raises StorageError where the disk refuses, ValueError for files that no model consists of,
    and what `fill` raises.
    """
    with storage_guard(directory), _work(directory) as work:
        (work / WEIGHTS).mkdir()
        fill(work / WEIGHTS)
        files = _settled(work)
        made = replace(card, files=files, id=identity(card, files), created=_now())
        write_atomic(work / PAGE, card_page(made).encode("utf-8", "replace"))
        write_json_atomic(work / CARD, spell_card(made))
        _publish(work, directory)
    return Artifact(directory, made)


@contextmanager
def _work(directory: Path) -> Generator[Path]:
    """A fresh directory beside `directory`, gone at the end unless it was renamed."""
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent, directory.name)
    path = parent / f"{_TEMPORARY}{directory.name}-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(parent: Path, name: str) -> None:
    """Remove what writers of this artifact left that were killed."""
    replaced = parent / f"{_REPLACED}{name}"
    if replaced.exists():
        if (parent / name).exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(parent / name)
    left = re.compile(re.escape(f"{_TEMPORARY}{name}-") + r"(\d{1,9})-[0-9a-f]{8}")
    for path in parent.iterdir():
        match = left.fullmatch(path.name)
        if match and not _alive(int(match[1])):
            shutil.rmtree(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _settled(work: Path) -> tuple[FileDigest, ...]:
    """Check and flush what was filled in, and take its digests."""
    paths = [path for path in sorted(work.rglob("*")) if not path.is_dir()]
    for path in paths:
        name = path.relative_to(work).as_posix()
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"an artifact holds regular files only, not {name}")
        if path.suffix not in _SUFFIXES or not name.isprintable():
            raise ValueError(f"{name!r} is nothing that a model is read from")
    files = tuple(_flushed(path, path.relative_to(work).as_posix()) for path in paths)
    _require_weights(files)
    for inner in [work, *(path for path in work.rglob("*") if path.is_dir())]:
        fsync_directory(inner)
    return files


def _flushed(path: Path, name: str) -> FileDigest:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileDigest(name=name, size=path.stat().st_size, sha256=digest)


def _require_weights(files: Iterable[FileDigest]) -> None:
    names = [PurePosixPath(file.name) for file in files]
    if not any(n.suffix == ".safetensors" and str(n.parent) == WEIGHTS for n in names):
        raise ValueError("there are no safetensors in it")


def _publish(work: Path, final: Path) -> None:
    """Put a complete directory in place; a kill in between is mended by the next writer."""
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if final.exists():
        final.rename(replaced)
    work.rename(final)
    fsync_directory(final.absolute().parent)
    if replaced.exists():
        shutil.rmtree(replaced)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- reading -------------------------------------------------------------------------------


def read_card(directory: Path, *, verify: bool = False) -> Card:
    """The card of the artifact in `directory`, whose files are there in the right sizes.

    `verify` also compares the digest of every file, and finds files that the card does not
    know. Raises StorageError where anything is missing, damaged or not what it says.
    """
    path = directory / CARD
    with storage_guard(path, verb="read"):
        if not path.exists():
            raise _broken(f"it has no {CARD}: it is no model, or a part of one", directory)
        data = path.read_bytes()
    try:
        card = parse_card(data)
        _require_weights(card.files)
        if card.id != identity(card, card.files):
            raise ValueError("its id is not that of its weights, parents and recipe")
    except ValueError as error:
        raise _broken(f"{CARD} cannot be used: {error}", path) from error
    with storage_guard(directory, verb="read"):
        for file in card.files:
            _check(directory, file, digest=verify)
        if verify:
            _check_nothing_else(directory, card)
    return card


def _check(directory: Path, file: FileDigest, *, digest: bool) -> None:
    pure = PurePosixPath(file.name)
    path = directory / pure
    if pure.is_absolute() or ".." in pure.parts or pure.suffix not in _SUFFIXES:
        raise _broken(f"{CARD} names {file.name!r:.80}, which is no part of a model", directory)
    if not path.is_file() or not path.resolve().is_relative_to(directory.resolve()):
        raise _broken(f"{file.name} is missing", path)
    if (size := path.stat().st_size) != file.size:
        raise _broken(f"{file.name} has {size:,} bytes instead of {file.size:,}", path)
    if digest:
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != file.sha256:
            raise _broken(f"{file.name} does not match its SHA-256", path)


def _check_nothing_else(directory: Path, card: Card) -> None:
    known = {CARD, PAGE, *(file.name for file in card.files)}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_dir() and name not in known:
            raise _broken(f"{name} is not in the card", path)


def _broken(what: str, where: Path) -> StorageError:
    return StorageError(what, where=str(where), hint=_BROKEN_HINT)


# --- the registry --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An artifact by its `place`: RUN, RUN/STAGE, or the name of a model that no run made.

    One that is damaged has no card and says why in `problem`.
    """

    place: str
    path: Path
    card: Card | None
    problem: str = ""

    @property
    def artifact(self) -> Artifact:
        """Raises StorageError where the artifact is damaged."""
        if self.card is None:
            raise _broken(self.problem, self.path)
        return Artifact(self.path, self.card)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A model in a family tree, and what it was made from.

    A model from elsewhere has no `artifact`, and neither has one that is `missing`, which says
    how. `weight` is its share of the merge that it is a parent of. `again`: it has its parents
    at another place in the tree.
    """

    source: str
    digest: str
    artifact: Artifact | None = None
    missing: str = ""
    weight: float | None = None
    again: bool = False
    parents: tuple[Ancestor, ...] = ()

    def bases(self) -> list[str]:
        """The sources of the models that the tree ends at, each once."""
        if not self.parents and not self.again:
            return [self.source]
        return list(dict.fromkeys(base for p in self.parents for base in p.bases()))


class ModelRegistry:
    """The models that the runs under a directory have made, and what was merged of them."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def place(self, name: str) -> Path:
        """Where a merged model of that name goes. Raises UsageError for a name that is none."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r:.80} cannot be the name of a model",
                hint="take at most 64 of a-z, 0-9, -, _ and ., a letter or digit first",
            )
        return self.runs / MODELS / name

    def entries(self) -> list[Entry]:
        """Every artifact, the oldest first; damaged ones say why."""
        with storage_guard(self.runs, verb="read"):
            found = [_entry(place, path) for place, path in self._places()]
        return sorted(found, key=lambda e: (e.card.created if e.card else "", e.place))

    def _places(self) -> Iterator[tuple[str, Path]]:
        for run in _directories(self.runs):
            if run.name != MODELS:
                yield from _places_of(run)
        for path in _directories(self.runs / MODELS):
            yield path.name, path

    def find(self, fragment: str) -> Artifact:
        """The artifact that `fragment` means.

        A path (of an artifact, or of a run), the beginning of an id, a place, the unique
        beginning or end of a run's name, or "latest". Of a run with stages it is what was made
        last. Raises ModelError with near misses or the candidates, StorageError where the
        artifact is damaged.
        """
        path = Path(fragment).expanduser()
        if fragment and _is_directory(path):
            if (path / CARD).is_file():
                return Artifact(path, read_card(path))
            entries = [_entry(place, found) for place, found in _places_of(path)]
            if entries:
                return _newest(entries).artifact
        return self._meant(fragment)

    def _meant(self, fragment: str) -> Artifact:
        entries = self.entries()
        if not entries:
            raise ModelError(
                "no run has left a model yet", where=str(self.runs), hint="headrace run quickstart"
            )
        if fragment == "latest":
            return _newest(entries).artifact
        for means in (_exactly, _beginning):
            matches = [entry for entry in entries if fragment and means(entry, fragment)]
            if not matches:
                continue
            if len({_run_of(entry) for entry in matches}) > 1 and len(_ids(matches)) > 1:
                raise _ambiguous(fragment, matches, self.runs)
            return _newest(matches).artifact
        raise _unknown(fragment, entries, self.runs)

    def lineage(self, artifact: Artifact, among: Sequence[Entry] | None = None) -> Ancestor:
        """The family tree of an artifact, down to models that were not made here.

        `among` are the entries where they are known already.
        """
        entries = self.entries() if among is None else among
        known = {entry.card.id: entry.artifact for entry in entries if entry.card}
        seen: set[str] = set()

        def made(artifact: Artifact, parent: Parent | None, depth: int) -> Ancestor:
            again = artifact.card.id in seen
            seen.add(artifact.card.id)
            parents = () if again else artifact.card.parents
            return Ancestor(
                source=str(artifact.path),
                digest=artifact.card.id,
                artifact=artifact,
                weight=None if parent is None else parent.weight,
                again=again,
                parents=tuple(ancestor(parent, depth + 1) for parent in parents),
            )

        def ancestor(parent: Parent, depth: int) -> Ancestor:
            found = None if parent.artifact is None else known.get(parent.artifact)
            if found is not None and depth < _DEEPEST:
                return made(found, parent, depth)
            why = f"it is not under {self.runs}" if found is None else "the tree is too deep"
            return Ancestor(
                source=parent.source,
                digest=parent.artifact or parent.digest,
                missing="" if parent.artifact is None else why,
                weight=parent.weight,
            )

        return made(artifact, None, 0)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # what a person typed may be too long for a path
        return False


def _directories(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _places_of(run: Path) -> Iterator[tuple[str, Path]]:
    if (run / "artifact").is_dir():
        yield run.name, run / "artifact"
    for stage in _directories(run / "stages"):
        if (stage / "artifact").is_dir():
            yield f"{run.name}/{stage.name}", stage / "artifact"


def _entry(place: str, path: Path) -> Entry:
    try:
        return Entry(place=place, path=path, card=read_card(path))
    except StorageError as error:
        return Entry(place=place, path=path, card=None, problem=error.what)


def _run_of(entry: Entry) -> str:
    return entry.place.partition("/")[0]


def _ids(entries: Sequence[Entry]) -> set[str]:
    return {entry.card.id if entry.card else str(entry.path) for entry in entries}


def _newest(entries: Sequence[Entry]) -> Entry:
    return max(entries, key=lambda entry: entry.card.created if entry.card else "")


def _exactly(entry: Entry, fragment: str) -> bool:
    names = {entry.place, _run_of(entry)}
    return fragment in names or (entry.card is not None and entry.card.id == fragment)


def _beginning(entry: Entry, fragment: str) -> bool:
    run, _, stage = entry.place.partition("/")
    wanted, _, of_stage = fragment.partition("/")
    named = (run.startswith(wanted) or run.endswith(wanted)) and of_stage in ("", stage)
    return named or (entry.card is not None and entry.card.id.startswith(fragment))


def _ambiguous(fragment: str, matches: Sequence[Entry], runs: Path) -> ModelError:
    named = [f"{e.card.id if e.card else 'damaged'} ({e.place})" for e in matches[:8]]
    return ModelError(
        f"{fragment!r:.80} means {len(matches)} models: {', '.join(named)}",
        where=str(runs),
        hint="type more of the id",
    )


def _unknown(fragment: str, entries: Sequence[Entry], runs: Path) -> ModelError:
    names = {entry.place for entry in entries} | {_run_of(entry) for entry in entries}
    ids = {entry.card.id for entry in entries if entry.card}
    close = difflib.get_close_matches(fragment, sorted(names | ids), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "headrace models ls shows them"
    return ModelError(f"no model {fragment!r:.80}", where=str(runs), hint=hint)
