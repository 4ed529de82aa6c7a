"""The candidate's side of a test run: does what it is asked with the candidate's modules.

A program for a sandbox, run there as the user "agent" with nothing but the standard library:
`python3 hands.py SOCKET TREE`. It connects to the judge's socket and forks a process which
answers one request a line until the judge hangs up; then it is killed and a new one waits. A
candidate can take over all of this, and gains nothing by it: what it sends is only ever taken
for the values that its functions return.

A request is `{"fn", "args", "kwargs"}`, an answer `{"ok"}` or `{"error"}`, with `out` (what was
printed) and `after` (mutable arguments as they are now). Values are spelled as in `encode`.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import importlib
import io
import json
import operator
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

_PATIENCE_S = 60.0
_LARGE = 10**4000
_MUTABLE = (list, dict, set, bytearray)
_LIKE_DICT = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod"),
    *("and_", "or_", "xor", "matmul", "neg", "pos", "abs", "invert", "index"),
    *("getitem", "setitem", "delitem", "contains"),
)

_SPELLINGS: dict[type, Callable[[Any], Any]] = {
    bytes: bytes.hex,
    bytearray: bytearray.hex,
    range: lambda value: (value.start, value.stop, value.step),
    complex: lambda value: (value.real, value.imag),
    decimal.Decimal: str,
    fractions.Fraction: lambda value: (value.numerator, value.denominator),
    datetime.datetime: datetime.datetime.isoformat,
    datetime.date: datetime.date.isoformat,
    datetime.time: datetime.time.isoformat,
    datetime.timedelta: lambda value: (value.days, value.seconds, value.microseconds),
}
"""The fields of other plain values; a value is spelled as its type's name and these."""


class Hands:
    """One conversation: objects that were handed out by number, and what can be asked."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.functions: dict[str, Callable[..., Any]] = {
            name: getattr(operator, name) for name in _OPERATORS
        }
        plain: tuple[Any, ...] = (len, iter, next, hash, str, repr, bool, int, float)
        more: tuple[Any, ...] = (getattr, setattr, delattr, isinstance, issubclass)
        self.functions.update({function.__name__: function for function in plain + more})
        self.functions["import"] = importlib.import_module
        self.functions["call"] = _call
        self.functions["plain"] = _plain

    def answer(self, line: bytes) -> dict[str, Any]:
        """What one request came to."""
        request = json.loads(line)
        args: list[Any] = []
        before: list[Any] = []
        printed = io.StringIO()
        said: dict[str, Any]
        try:
            args += [self.decode(item) for item in request["args"]]
            kwargs = {key: self.decode(item) for key, item in request["kwargs"].items()}
            before += [self.mutable(item) for item in args]
            with contextlib.redirect_stdout(printed):
                value = self.functions[request["fn"]](*args, **kwargs)
            said = {"ok": self.encode(value)}
        except BaseException as error:  # noqa: BLE001 (whatever it is, the judge is told)
            said = {"error": self.raised(error)}
        after = [self.mutable(item) for item in args]
        pairs = zip(before, after)  # noqa: B905 (no argument of Python 3.9)
        said["after"] = [[i, new] for i, (old, new) in enumerate(pairs) if new != old]
        said["out"] = printed.getvalue()
        return said

    def mutable(self, value: Any) -> Any:
        """A mutable plain value, spelled; None for any other."""
        return self.encode(value) if type(value) in _MUTABLE else None

    def raised(self, error: BaseException) -> dict[str, Any]:
        """An exception: its class, arguments, text, and itself for its attributes."""
        args: Any = []
        with contextlib.suppress(RecursionError):
            args = [self.encode(item) for item in error.args]
        return {
            "class": self.handle(type(error)),
            "args": args,
            "text": str(error),
            "self": self.handle(error),
        }

    def encode(self, value: Any) -> Any:
        """A value as JSON: plain ones by content, all others as numbers of objects here."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -_LARGE < value < _LARGE else ["int", hex(value)]
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.encode(item) for item in value]]
        if kind in _LIKE_DICT:
            pairs = [[self.encode(key), self.encode(item)] for key, item in value.items()]
            return ["dict", pairs]
        if kind in _SPELLINGS:
            fields = _SPELLINGS[kind](value)
            return [kind.__name__, *(fields if type(fields) is tuple else (fields,))]
        return self.handle(value)

    def handle(self, value: Any) -> Any:
        """The number of an object, what it is, its name, and an exception's builtin bases."""
        number = self.numbers.get(id(value))
        if number is None:
            number = len(self.objects) + 1
            self.numbers[id(value)] = number
            self.objects[number] = value
        what, bases = "object", []
        name = str(getattr(value, "__name__", ""))
        if isinstance(value, type):
            what, name = "class", f"{value.__module__}.{value.__qualname__}"
            if issubclass(value, BaseException):
                what = "exception"
                bases = [
                    base.__name__
                    for base in value.__mro__
                    if getattr(builtins, base.__name__, None) is base
                ]
        elif type(value) is type(sys):
            what = "module"
        return ["object", number, what, name, bases]

    def decode(self, item: Any) -> Any:
        """The value that the judge spelled; it is trusted to spell well."""
        if not isinstance(item, list):
            return item
        tag, *rest = item
        if tag == "object":
            return self.objects[rest[0]]
        if tag == "path":
            module = importlib.import_module(rest[0])
            return module if rest[1] is None else getattr(module, rest[1])
        return plain_value(tag, rest, self.decode)


def plain_value(tag: str, rest: list[Any], decode: Callable[[Any], Any]) -> Any:
    """A tagged plain value; KeyError for a tag that is none."""
    if tag == "dict":
        return {decode(key): decode(item) for key, item in rest[0]}
    if tag in ("list", "tuple", "set", "frozenset"):
        return getattr(builtins, tag)(decode(item) for item in rest[0])
    if tag in ("bytes", "bytearray"):
        return getattr(builtins, tag).fromhex(rest[0])
    if tag in ("datetime", "date", "time"):
        return getattr(datetime, tag).fromisoformat(rest[0])
    return {
        "int": lambda text: int(text, 16),
        "complex": complex,
        "range": range,
        "Decimal": decimal.Decimal,
        "Fraction": fractions.Fraction,
        "timedelta": datetime.timedelta,
    }[tag](*rest)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


_PEELS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (tuple, lambda item: tuple(tuple.__iter__(item))),
    (list, lambda item: list(list.__iter__(item))),
    (dict, lambda item: dict(dict.items(item))),
    (set, lambda item: set(set.__iter__(item))),
    (frozenset, lambda item: frozenset(frozenset.__iter__(item))),
)


def _plain(value: Any) -> Any:
    """What a value of a class derived from a plain one is without that class; else None."""
    return next((peel(value) for base, peel in _PEELS if isinstance(value, base)), None)


def serve(link: socket.socket) -> None:
    """Answer until the judge hangs up."""
    hands = Hands()
    with link.makefile("rwb") as file:
        for line in file:
            try:
                text = json.dumps(hands.answer(line))
            except (RecursionError, ValueError, KeyError) as error:
                raised = hands.raised(RuntimeError(f"no value to hand over: {error}"))
                text = json.dumps({"error": raised, "after": [], "out": ""})
            file.write(text.encode() + b"\n")
            file.flush()


def connect(path: str) -> socket.socket:
    """The judge's socket, as soon as it is there."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(path)
        except OSError:
            link.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return link


def main(path: str, tree: str) -> None:
    """Serve one conversation after the other, each in a process of its own."""
    os.chdir(tree)
    while True:
        link = connect(path)
        child = os.fork()
        if child == 0:
            sys.path.insert(0, tree)
            sys.dont_write_bytecode = True
            try:
                serve(link)
            finally:
                os._exit(0)
        hangup = select.poll()
        hangup.register(link, select.POLLRDHUP)
        while not hangup.poll(10) and os.waitpid(child, os.WNOHANG)[0] == 0:
            pass
        link.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
