"""The arrays of a trajectory as bytes: five streams beside its JSON instead of inside of it.

Where many trajectories are written, base64 inside of JSON costs a third more bytes and most of
the time. A stream is the arrays of one name, turn after turn, little-endian; the JSON holds
their lengths. May be known by the codec and by whoever lays records out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["STREAMS", "ArrayReader", "ArrayWriter", "little_bytes"]

STREAMS: Mapping[str, np.dtype[np.generic]] = {
    "ids": np.dtype("<i4"),
    "sampled": np.dtype("|b1"),
    "logps": np.dtype("<f4"),
    "support.offsets": np.dtype("<i8"),
    "support.ids": np.dtype("<i4"),
}
"""Names and item types, in the order in which streams follow each other in a record."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


@cache
def _dtypes(kind: type[np.generic]) -> tuple[np.dtype[np.generic], np.dtype[np.generic]]:
    """A type as this machine has it, and little-endian."""
    dtype = np.dtype(kind)
    return dtype, dtype.newbyteorder("<")


def little_bytes(array: npt.NDArray[np.generic], kind: type[np.generic], where: str) -> bytes:
    """The little-endian bytes of a one-dimensional array of `kind`; TypeError for another."""
    dtype, little = _dtypes(kind)
    if array.dtype != dtype or array.ndim != 1:
        raise TypeError(
            f"{where} must be a one-dimensional {dtype} array, not {array.ndim}-d {array.dtype}"
        )
    return array.tobytes() if little == dtype else array.astype(little).tobytes()


class ArrayWriter:
    """Takes arrays by the name of their stream; `lengths` and `parts` are what came of it."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {name: [] for name in STREAMS}

    def put(self, array: npt.NDArray[np.generic], kind: type[np.generic], stream: str) -> int:
        """Append an array to its stream; its length, which the JSON holds in its place."""
        self._parts[stream].append(little_bytes(array, kind, stream))
        return len(array)

    def lengths(self) -> list[int]:
        """Items in each stream, in the order of `STREAMS`."""
        return [
            sum(map(len, parts)) // STREAMS[name].itemsize for name, parts in self._parts.items()
        ]

    def parts(self) -> list[bytes]:
        """The bytes of all streams, in order."""
        return [part for parts in self._parts.values() for part in parts]


class ArrayReader:
    """Gives arrays back in the order in which they were put. ValueError for what cannot be."""

    def __init__(self, streams: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self._streams = streams
        self._taken = dict.fromkeys(STREAMS, 0)

    @classmethod
    def of(cls, lengths: Sequence[int], blob: bytes) -> ArrayReader:
        """Of the bytes that `ArrayWriter.parts` gave, joined, and its `lengths`."""
        streams: dict[str, npt.NDArray[np.generic]] = {}
        position = 0
        if len(lengths) != len(STREAMS) or any(length < 0 for length in lengths):
            raise ValueError(f"arrays are {len(STREAMS)} lengths, not {lengths!r:.40}")
        for (name, dtype), length in zip(STREAMS.items(), lengths, strict=True):
            if position + length * dtype.itemsize > len(blob):
                raise ValueError(f"the bytes end before the {length} items of {name}")
            streams[name] = np.frombuffer(blob, dtype, length, position)
            position += length * dtype.itemsize
        if position != len(blob):
            raise ValueError(f"{len(blob) - position} bytes are left over after the arrays")
        if streams["sampled"].tobytes().strip(b"\0\1"):
            raise ValueError("sampled holds bytes that are no booleans")
        return cls(streams)

    def stream(self, name: str) -> npt.NDArray[np.generic]:
        """All of one stream."""
        return self._streams[name]

    def take(self, stream: str, count: int, kind: type[_Scalar]) -> npt.NDArray[_Scalar]:
        """The next `count` items of a stream, in an array of their own."""
        start = self._taken[stream]
        if not 0 <= count <= len(self._streams[stream]) - start:
            raise ValueError(f"{stream} does not hold {count} items more")
        self._taken[stream] = start + count
        return self._streams[stream][start : start + count].astype(kind)

    def done(self) -> None:
        for name, taken in self._taken.items():
            if taken != len(self._streams[name]):
                raise ValueError(f"{name} holds {len(self._streams[name]) - taken} items too many")
