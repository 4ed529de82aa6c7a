"""Raw rows of data files, each with its place and content hash; and the tally of what is refused.

Containers: JSON (an array, or values one after another), JSON lines, CSV and TSV, these also as
.gz and .zst; Parquet and Arrow. A row that cannot be read becomes a `Refused`, and reading goes
on; only a file of which nothing can be read is an error. What rows mean is not known here.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageError, UsageError
from headrace.types import Json

__all__ = ["Refusals", "Refused", "Row", "read_rows"]

_LONGEST = 64 << 20
"""Bytes of the longest row that is read."""
_LARGEST = 4 << 30
"""Bytes of the largest JSON document that is read; JSON lines have no such limit."""
_EXCERPT = 80
_EXAMPLES = 3
_BOM = b"\xef\xbb\xbf"

_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_TEXTS = {
    ".json": "json",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COLUMNS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}

_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\}[\s,\[\]]*(?=\{)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as the file has it: absent, null and "" are three different things in `value`.

    `number` counts rows from 0, `offset` is the byte (of the unpacked text) where it begins, None
    where rows have none. `digest` is the same for the same content in any container: 16 hex
    digits. `columnar` containers fill what is absent with null.
    """

    value: Mapping[str, Json]
    file: str
    number: int
    offset: int | None
    digest: str
    columnar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A row (or `rows` of them, in one piece) that is not used: why, where and how it begins.

    `reason` is one of a few, so that it can be counted; `detail` is about this row.
    """

    reason: str
    file: str
    number: int
    offset: int | None = None
    detail: str = ""
    excerpt: str = ""
    rows: int = 1

    @classmethod
    def of(cls, row: Row, reason: str, detail: str = "") -> Refused:
        """The refusal of a row that was read."""
        return cls(
            reason=reason,
            detail=detail,
            file=row.file,
            number=row.number,
            offset=row.offset,
            excerpt=_excerpt(row.value),
        )

    def __str__(self) -> str:
        place = f"row {self.number}" + ("" if self.offset is None else f", byte {self.offset}")
        detail = f": {self.detail}" if self.detail else ""
        return f"{place}{detail}: {self.excerpt!r}" if self.excerpt else f"{place}{detail}"


class Refusals:
    """How many rows of a source were accepted, and which were refused why, with examples.

    `skipped` rows are sound and not wanted (an attempt below the score that is asked for): they
    count on neither side.

    >>> tally = Refusals("chat.jsonl")
    >>> tally.accept()
    >>> tally.refuse(Refused(reason="not JSON", file="chat.jsonl", number=1))
    >>> tally.share
    0.5
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.accepted = 0
        self.reasons: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.examples: dict[str, list[Refused]] = {}

    def accept(self) -> None:
        self.accepted += 1

    def skip(self, reason: str) -> None:
        self.skipped[reason] += 1

    def refuse(self, refused: Refused) -> None:
        self.reasons[refused.reason] += refused.rows
        kept = self.examples.setdefault(refused.reason, [])
        if len(kept) < _EXAMPLES:
            kept.append(refused)

    @property
    def refused(self) -> int:
        return self.reasons.total()

    @property
    def share(self) -> float:
        """Refused rows among all that were accepted or refused, 0..1."""
        rows = self.refused + self.accepted
        return self.refused / rows if rows else 0.0

    def summary(self) -> str:
        """The reasons, most frequent first, each with its count and examples; skipped ones too."""
        refused = [
            f"{count} x {reason} ({'; '.join(str(example) for example in self.examples[reason])})"
            for reason, count in self.reasons.most_common()
        ]
        skipped = [f"{count} left out: {reason}" for reason, count in self.skipped.most_common()]
        return "; ".join(refused + skipped)

    def check(self, max_refused: float) -> None:
        """UsageError that lists the reasons where more than that share (0..1) is refused."""
        if self.share > max_refused:
            raise UsageError(
                f"{self.refused} of {self.refused + self.accepted} rows are refused, more than a "
                f"share of {max_refused:g}: {self.summary()}",
                where=self.source,
                hint="mend or leave out the source, or raise data.max_refused",
            )


def read_rows(path: Path) -> Iterator[Row | Refused]:
    """The rows of a file in order, bad ones as `Refused`.

    UsageError where there is no such file, its name says no container, or nothing of it can be
    read; StorageError where the disk fails.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = suffixes[-2] if compression and len(suffixes) > 1 else (suffixes or [""])[-1]
    if kind not in _TEXTS and (kind not in _COLUMNS or compression):
        raise UsageError(
            f"no container of data is called {path.name!r}",
            where=str(path),
            hint=f"known: {' '.join([*_TEXTS, *_COLUMNS])}, the texts also as .gz and .zst",
        )
    if not path.is_file():
        raise UsageError("no such file", where=str(path), hint="check the path of the data source")
    if kind in _COLUMNS:
        return _columns(path, _COLUMNS[kind])
    return _texts(path, _TEXTS[kind], compression)


# --- texts ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """Makes rows of one file, and counts them."""

    file: str
    columnar: bool = False
    number: int = 0

    def row(self, value: Json, offset: int | None) -> Row | Refused:
        if not isinstance(value, dict):
            return self.refused("not an object", offset, _excerpt(value))
        try:
            spelled = json.dumps(
                value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_foreign
            ).encode()
        except UnicodeEncodeError:
            return self.refused("not UTF-8", offset, _excerpt(value))
        except (TypeError, RecursionError) as error:
            return self.refused("not JSON", offset, str(value)[:_EXCERPT], str(error))
        self.number += 1
        return Row(
            value=cast("dict[str, Json]", value),
            file=self.file,
            number=self.number - 1,
            offset=offset,
            digest=hashlib.sha256(spelled).hexdigest()[:16],
            columnar=self.columnar,
        )

    def refused(
        self, reason: str, offset: int | None, text: str, detail: str = "", *, rows: int = 1
    ) -> Refused:
        number, self.number = self.number, self.number + rows
        return Refused(
            reason=reason,
            file=self.file,
            number=number,
            offset=offset,
            detail=detail,
            excerpt=_readable(text),
            rows=rows,
        )


def _texts(path: Path, kind: str, compression: str | None) -> Iterator[Row | Refused]:
    cursor = _Cursor(str(path))
    readers = {"json": _json_document, "lines": _json_lines, "csv": _csv, "tsv": _csv}
    try:
        with _opened(path, compression) as stream:
            if kind == "tsv":
                yield from _csv(stream, cursor, "\t")
            else:
                yield from readers[kind](stream, cursor)
    except (EOFError, zlib.error) as error:
        yield cursor.refused("the packed file is damaged", None, "", str(error))
    except OSError as error:
        if error.errno is not None or compression is None:
            raise StorageError(f"cannot be read: {error}", where=str(path)) from error
        yield cursor.refused("the packed file is damaged", None, "", str(error))


def _opened(path: Path, compression: str | None) -> IO[bytes]:
    if compression == "gzip":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if compression == "zstd":
        unpacked: Any = pa.input_stream(str(path), compression="zstd")
        return io.BufferedReader(unpacked)
    return path.open("rb")


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its offset; None for one that is too long to be read."""
    offset = 0
    while line := stream.readline(_LONGEST):
        length, last = len(line), line
        while len(last) == _LONGEST and not last.endswith(b"\n"):
            last = stream.readline(_LONGEST)
            length += len(last)
        whole = line if length == len(line) else None
        start = len(_BOM) if offset == 0 and line.startswith(_BOM) else 0
        yield offset + start, whole if whole is None else whole[start:]
        offset += length


def _json_lines(stream: IO[bytes], cursor: _Cursor) -> Iterator[Row | Refused]:
    for offset, line in _lines(stream):
        if line is None:
            yield cursor.refused("a row of more than 64 MiB", offset, "")
        elif text := line.strip():
            try:
                value: Json = json.loads(text)
            except UnicodeDecodeError:
                yield cursor.refused(
                    "not UTF-8", offset, text[:_EXCERPT].decode("utf-8", "replace")
                )
            except (ValueError, RecursionError) as error:
                excerpt = text[: 4 * _EXCERPT].decode("utf-8", "replace")
                yield cursor.refused("not JSON", offset, excerpt, str(error))
            else:
                yield cursor.row(value, offset)


def _json_document(stream: IO[bytes], cursor: _Cursor) -> Iterator[Row | Refused]:
    """The objects of an array, or of values one after another; brackets only separate them."""
    data = _whole(stream, cursor)
    damage = data.damage
    text = data.content.removeprefix(_BOM).decode("utf-8", "surrogateescape")
    offset = len(_BOM) if data.content.startswith(_BOM) else 0
    decoder = json.JSONDecoder()
    keys: set[str] = set()
    at = 0
    while True:
        start = _skip(text, at)
        offset += len(text[at:start].encode("utf-8", "surrogateescape"))
        if start >= len(text):
            break
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            excerpt = text[start : start + _EXCERPT]
            yield cursor.refused("not JSON", offset, excerpt, str(error)[:200])
            end = _resume(text, start, keys, decoder)
        else:
            row = cursor.row(value, offset)
            keys |= row.value.keys() if isinstance(row, Row) else set()
            yield row
        offset += len(text[start:end].encode("utf-8", "surrogateescape"))
        at = end
    if damage:
        yield cursor.refused("the packed file is damaged", None, "", damage)


@dataclass(frozen=True, slots=True)
class _Document:
    content: bytes
    damage: str = ""


def _whole(stream: IO[bytes], cursor: _Cursor) -> _Document:
    """All that can be unpacked of a document."""
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := stream.read(1 << 20):
            chunks.append(chunk)
            size += len(chunk)
            if size > _LARGEST:
                raise UsageError(
                    "a JSON document of more than 4 GiB",
                    where=cursor.file,
                    hint="write it as JSON lines",
                )
    except (EOFError, zlib.error) as error:
        return _Document(b"".join(chunks), str(error))
    except OSError as error:
        if error.errno is not None:
            raise
        return _Document(b"".join(chunks), str(error))
    return _Document(b"".join(chunks))


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def _resume(text: str, start: int, keys: set[str], decoder: json.JSONDecoder) -> int:
    """Where the row after a broken one begins: an object that has a key of the rows before."""
    for found in _NEXT.finditer(text, start):
        try:
            value, _ = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        if not keys or (isinstance(value, dict) and not keys.isdisjoint(value)):
            return found.end()
    return len(text)


class _Decoded:
    """The lines of a stream as text; `offset` is the byte behind the last one given out."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines = _lines(stream)
        self.offset = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        start, line = next(self._lines)
        if line is None:
            raise csv.Error("a line of more than 64 MiB")
        self.offset = start + len(line)
        return line.decode("utf-8", "surrogateescape")


def _csv(stream: IO[bytes], cursor: _Cursor, delimiter: str = ",") -> Iterator[Row | Refused]:
    csv.field_size_limit(_LONGEST)
    lines = _Decoded(stream)
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise UsageError(f"its first line is no header: {error}", where=cursor.file) from error
    if not header or len(set(header)) < len(header):
        raise UsageError(
            "its first line must name every column, each by a name of its own", where=cursor.file
        )
    while True:
        offset = lines.offset
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield cursor.refused("not CSV", offset, "", str(error))
            continue
        if not cells:
            continue
        if len(cells) != len(header):
            detail = f"{len(cells)} cells in {len(header)} columns"
            yield cursor.refused("not CSV", offset, delimiter.join(cells), detail)
        else:
            yield cursor.row(dict(zip(header, cells, strict=True)), offset)


# --- columns -------------------------------------------------------------------------------


def _columns(path: Path, kind: str) -> Iterator[Row | Refused]:
    cursor = _Cursor(str(path), columnar=True)
    try:
        batches = _parquet(path) if kind == "parquet" else _arrow(path)
        for batch in batches:
            for value in batch.to_pylist():
                yield cursor.row(value, None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"cannot be read: {error}", where=str(path)) from error
        if not cursor.number:
            raise UsageError(f"this is no {kind} file: {error}", where=str(path)) from error
        yield cursor.refused("the file is damaged from here on", None, "", str(error)[:200])


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=1024)


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    """Both layouts of Arrow's interchange format: with a footer, and as a stream."""
    with pa.OSFile(str(path), "rb") as file:
        if file.read(6) == b"ARROW1":
            table = pa.ipc.open_file(file)
            for number in range(table.num_record_batches):
                yield from _small(table.get_batch(number))
        else:
            file.seek(0)
            for batch in pa.ipc.open_stream(file):
                yield from _small(batch)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, 1024):
        yield batch.slice(start, 1024)


def _foreign(value: object) -> Json:
    """The spelling in the digest of a value that columns can hold and JSON cannot."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return str(value)


def _excerpt(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=_foreign)
    except (TypeError, RecursionError):
        text = str(value)
    return _readable(text)


def _readable(text: str) -> str:
    """The first 80 characters, with nothing in them that cannot be written to a log."""
    return text[:_EXCERPT].encode("utf-8", "replace").decode("utf-8")
