"""The judge's side of a test run: the task's unittest files, without the candidate's code.

A program for a sandbox, run there as the user "verifier" with nothing but the standard library:
`python3 -I -S runner.py < CONFIG`. The tests import the candidate's modules as usual, but get
stand-ins: every call goes to a process of the user "agent" (`hands.py`) and only plain values
come back. So no object of the candidate's is ever compared by its own rules with what a test
expects, no frame of a test can be walked to, and nothing of the candidate's can write a result.

Two rules keep expectations on this side: a stand-in is compared with a plain value by what it
plainly is (an int for a class derived from int) or not at all, and `in` looks through its items
here. What the stand-ins cannot do raises `Refused`, which no test can expect.
"""

from __future__ import annotations

import builtins
import datetime
import decimal
import fractions
import importlib
import importlib.machinery
import importlib.util
import io
import json
import operator
import os
import socket
import sys
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MOST_BYTES = 16 * 2**20
_LARGE = 10**4000
_NOTE = 1500
_START_S = 20.0


class Gone(BaseException):
    """The candidate's process ended, hung, or said what is no answer."""


class Refused(BaseException):
    """Something that cannot be done across the two processes, or must not be."""


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


class Link:
    """The conversation with the candidate's process, begun anew after it broke."""

    def __init__(self, path: str, seconds: float) -> None:
        self.seconds = seconds
        self.epoch = 0
        self.trouble = ""
        self._stream: socket.socket | None = None
        self._rest = b""
        self._classes: dict[str, type[BaseException]] = {}
        self._numbers: dict[type, tuple[int, int]] = {}
        os.mkdir(os.path.dirname(path), 0o711)  # noqa: PTH102, PTH120
        os.chmod(os.path.dirname(path), 0o711)  # noqa: PTH101, PTH120
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(path)
        os.chmod(path, 0o666)  # noqa: PTH101
        self._door.listen(1)

    def ask(self, fn: str, *args: Any, **kwargs: Any) -> Any:
        """The value of a function over there; raises what it raised."""
        return self.get(fn, args, kwargs, None)

    def get(
        self, fn: str, args: Sequence[Any], kwargs: dict[str, Any], origin: tuple[str, str] | None
    ) -> Any:
        """As `ask`; an object that comes back is found at `origin` after a restart too."""
        self._connect()
        request = {
            "fn": fn,
            "args": [self.encode(item) for item in args],
            "kwargs": {key: self.encode(item) for key, item in kwargs.items()},
        }
        said = self._exchange(json.dumps(request).encode() + b"\n")
        try:
            out = said["out"]
            sys.stdout.write(out if type(out) is str else "")
            self._mutate(args, said["after"])
            if "ok" in said:
                return self.decode(said["ok"], origin)
            error = self._error(said["error"])
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as problem:
            raise self.broken(f"it answered nonsense ({problem})") from None
        raise error

    def broken(self, why: str) -> Gone:
        """The end of this conversation."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._rest, self.trouble = None, b"", why
        return Gone(why)

    def _connect(self) -> socket.socket:
        if self._stream is None:
            self._door.settimeout(max(self.seconds, _START_S))
            try:
                self._stream = self._door.accept()[0]
            except OSError:
                raise self.broken("the candidate's process does not start") from None
            self.epoch += 1
        return self._stream

    def _exchange(self, line: bytes) -> dict[str, Any]:
        stream = self._connect()
        until = time.monotonic() + self.seconds
        try:
            stream.settimeout(self.seconds)
            stream.sendall(line)
            while b"\n" not in self._rest:
                stream.settimeout(max(0.001, until - time.monotonic()))
                piece = stream.recv(1 << 16)
                if not piece:
                    raise self.broken("the candidate's process ended")
                self._rest += piece
                if len(self._rest) > _MOST_BYTES:
                    raise self.broken("the candidate's answer does not end")
        except TimeoutError:
            raise self.broken(f"no answer within {self.seconds:g} s") from None
        except OSError as error:
            raise self.broken(f"the candidate's process ended ({error})") from None
        text, _, self._rest = self._rest.partition(b"\n")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if type(said) is not dict:
            raise self.broken("it answered nonsense")
        return said

    def _mutate(self, args: Sequence[Any], after: Any) -> None:
        for place, spelled in after:
            mine, now = args[place], self.decode(spelled)
            if type(mine) is not type(now):
                raise ValueError("an argument of another kind")
            if type(mine) is list or type(mine) is bytearray:
                mine[:] = now
            else:
                mine.clear()
                mine.update(now)

    def _error(self, said: Any) -> BaseException:
        """The exception to raise here: of a builtin class, or of a stand-in for one of theirs."""
        kind = self._exception_class(said["class"])
        args = tuple(self.decode(item) for item in said["args"])
        error: Any
        if kind.__module__ == "builtins":
            error = kind(*args)
        else:
            error = kind.__new__(kind)
            error.args = args
            error.__dict__["text"] = str(said["text"])
            error.__dict__["theirs"] = self.decode(said["self"])
        return error

    def _exception_class(self, spelled: Any) -> type[BaseException]:
        _, number, what, name, bases = spelled
        if what != "exception" or type(number) is not int or type(name) is not str:
            raise ValueError("no class of exceptions")
        base = next((getattr(builtins, item) for item in bases if item in _BASES), RuntimeError)
        if bases and name == f"builtins.{bases[0]}":
            return base
        if name not in self._classes:
            body = {"__str__": _their_text, "__getattr__": _their_attribute}
            made: Any = type(name.rpartition(".")[2] or "E", (base,), body)
            self._classes[name] = made
        kind = self._classes[name]
        self._numbers[kind] = (self.epoch, number)
        return kind

    # --- values ----------------------------------------------------------------------------

    def encode(self, value: Any) -> Any:
        """A plain value or a stand-in, spelled; Refused for anything else."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -_LARGE < value < _LARGE else ["int", hex(value)]
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.encode(item) for item in value]]
        if kind is dict:
            return ["dict", [[self.encode(k), self.encode(v)] for k, v in value.items()]]
        if kind in _SPELLINGS:
            fields = _SPELLINGS[kind](value)
            return [kind.__name__, *(fields if type(fields) is tuple else (fields,))]
        return self._theirs(value)

    def _theirs(self, value: Any) -> Any:
        kind = type(value)
        if kind is Theirs:
            return spelling(value)
        if kind is Module:
            return ["path", value.__name__, None]
        if isinstance(value, type) and self._numbers.get(value, (0, 0))[0] == self.epoch:
            return ["object", self._numbers[value][1]]
        raise Refused(f"a {kind.__name__} cannot be handed to the candidate's process")

    def decode(self, item: Any, origin: tuple[str, str] | None = None) -> Any:
        """The value spelled by `item`, of genuine plain types; ValueError and the like if none."""
        if item is None or type(item) in (bool, int, float, str):
            return item
        if type(item) is not list:
            raise ValueError("no value")
        tag, *rest = item
        if tag in ("list", "tuple", "set", "frozenset"):
            return getattr(builtins, tag)(self.decode(each) for each in rest[0])
        if tag == "dict":
            return {self.decode(key): self.decode(each) for key, each in rest[0]}
        if tag == "object":
            return self._stand_in(item, origin)
        return _PLAIN[tag](*rest)

    def _stand_in(self, item: Any, origin: tuple[str, str] | None) -> Any:
        _, number, what, name, _ = item
        if what == "exception":
            return self._exception_class(item)
        if what == "module" and name in sys.modules and type(sys.modules[name]) is Module:
            return sys.modules[name]
        if type(number) is not int:
            raise ValueError("no object")
        return Theirs(self, number, origin)


_GROUPS: Any = getattr(builtins, "BaseExceptionGroup", UnicodeError)
_BASES = frozenset(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, (Exception, SystemExit))
    and not issubclass(kind, (UnicodeError, _GROUPS))
)
"""Exceptions of the candidate's that are raised here as what they are; others as the nearest."""

_PLAIN: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "range": range,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": datetime.timedelta,
}


def _their_text(self: Any) -> str:
    return self.__dict__.get("text") or BaseException.__str__(self)


def _their_attribute(self: Any, name: str) -> Any:
    if name.startswith("__") or "theirs" not in self.__dict__:
        raise AttributeError(name)
    return getattr(self.__dict__["theirs"], name)


# --- stand-ins -----------------------------------------------------------------------------


def _mine(theirs: Any, slot: str) -> Any:
    return object.__getattribute__(theirs, slot)


def spelling(theirs: Any) -> Any:
    """A stand-in as a request names it: by its number, or after a restart by where it was."""
    link, origin = _mine(theirs, "_link"), _mine(theirs, "_origin")
    if origin is not None:
        return ["path", *origin]
    if _mine(theirs, "_epoch") != link.epoch:
        raise link.broken("an object of a process that has ended")
    return ["object", _mine(theirs, "_number")]


class Theirs:
    """An object of the candidate's, of which this process has nothing but a number."""

    __slots__ = ("_epoch", "_link", "_number", "_origin")

    def __init__(self, link: Link, number: int, origin: tuple[str, str] | None) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_origin", origin)
        object.__setattr__(self, "_epoch", link.epoch)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _mine(self, "_link").get("call", (self, *args), kwargs, None)

    def __getattr__(self, name: str) -> Any:
        return _mine(self, "_link").ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _mine(self, "_link").ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _mine(self, "_link").ask("delattr", self, name)

    def __iter__(self) -> Iterator[Any]:
        iterator = _mine(self, "_link").ask("iter", self)
        if type(iterator) is not Theirs:
            raise TypeError("iter() returned no iterator")
        return iterator

    def __next__(self) -> Any:
        return _mine(self, "_link").ask("next", self)

    def __contains__(self, item: Any) -> bool:
        return any(item is each or item == each for each in self)

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Theirs and bool(_mine(self, "_link").ask("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return type(value) is Theirs and bool(_mine(self, "_link").ask("issubclass", value, self))

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *error: Any) -> None:
        """The candidate learns of no error, and can make none go away."""
        self.__getattr__("__exit__")(None, None, None)

    def __hash__(self) -> int:
        return _number(_mine(self, "_link").ask("hash", self))

    def __str__(self) -> str:
        return _text(_mine(self, "_link").ask("str", self))

    def __repr__(self) -> str:
        return _text(_mine(self, "_link").ask("repr", self))

    def __eq__(self, other: object) -> bool:
        same, mine = _plainly(self, other)
        if same:
            return bool(_mine(self, "_link").ask("eq", self, other))
        return mine is not None and mine == other

    def __ne__(self, other: object) -> bool:
        same, mine = _plainly(self, other)
        if same:
            return bool(_mine(self, "_link").ask("ne", self, other))
        return mine is None or mine != other


def _number(value: Any) -> Any:
    if type(value) not in (int, float, bool):
        raise TypeError("no number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _plainly(theirs: Theirs, other: object) -> tuple[bool, Any]:
    """Whether `other` is the candidate's too; else what `theirs` plainly is, or None."""
    if type(other) is Theirs:
        return True, None
    plain = _mine(theirs, "_link").ask("plain", theirs)
    return False, None if type(plain) is Theirs else plain


def _unary(name: str, check: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return check(_mine(self, "_link").ask(name, self, *args))

    return method


def _binary(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        same, mine = _plainly(self, other)
        if same:
            return _mine(self, "_link").ask(name, self, other)
        if mine is None:
            raise Refused("an object of the candidate's is not calculated with here")
        return function(other, mine) if swapped else function(mine, other)

    return method


for _name in ("lt", "le", "gt", "ge"):
    setattr(Theirs, f"__{_name}__", _binary(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor"):
    _dunder = _name.rstrip("_")
    setattr(Theirs, f"__{_dunder}__", _binary(_name))
    setattr(Theirs, f"__r{_dunder}__", _binary(_name, swapped=True))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Theirs, f"__{_name}__", _unary(_name, lambda value: value))
for _name in ("getitem", "setitem", "delitem"):
    setattr(Theirs, f"__{_name}__", _unary(_name, lambda value: value))
for _name in ("len", "int", "float", "bool", "index"):
    setattr(Theirs, f"__{_name}__", _unary(_name, _number))


class Module(types.ModuleType):
    """A module of the candidate's, as tests import it."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__wrapped__"):
            raise AttributeError(name)
        loader: Any = self.__spec__ and self.__spec__.loader
        return loader.link.get("getattr", (self, name), {}, (self.__name__, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            super().__setattr__(name, value)
            return
        raise Refused("a module of the candidate's cannot be patched from here")


class Loader:
    """Makes stand-ins for the candidate's modules; an import that fails there fails here."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Module:
        self.link.ask("import", spec.name)
        return Module(spec.name)

    def exec_module(self, module: Module) -> None:
        """There is nothing to run."""


class Bare:
    """A package without a file, which holds test files only."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


class Finder:
    """Who provides a module: the tests' files, or the candidate."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        self.files: dict[str, str] = config["files"]
        self.spaces: list[str] = config["spaces"]
        self.theirs: list[str] = config["theirs"]
        self.loader: Any = Loader(link)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in self.files:
            return importlib.util.spec_from_file_location(
                name,
                self.files[name],
                submodule_search_locations=[] if self.files[name].endswith("__init__.py") else None,
            )
        if name in self.spaces:
            return importlib.machinery.ModuleSpec(name, Bare(), is_package=True)  # type: ignore[arg-type]
        if name.partition(".")[0] in self.theirs:
            return importlib.machinery.ModuleSpec(name, self.loader, is_package=True)
        return None


# --- the run -------------------------------------------------------------------------------


class Results(unittest.TestResult):
    """One line for each test that has ended."""

    def __init__(self, link: Link, report: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._link, self._report = link, report
        self._status, self._note = "failed", ""

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._status, self._note, self._link.trouble = "failed", "", ""

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        if self._link.trouble:
            self._status, self._note = "failed", self._link.trouble
        self._report({"id": test.id(), "status": self._status, "note": self._note[-_NOTE:]})

    def addSuccess(self, test: Any) -> None:
        self._status = "passed"

    def addFailure(self, test: Any, err: Any) -> None:
        self._note = _explained(err)

    def addError(self, test: Any, err: Any) -> None:
        self._note = _explained(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note = _explained(err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._status, self._note = "skipped", reason

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note = "an expected failure"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note = "an unexpected success"


def _explained(err: Any) -> str:
    return "".join(traceback.format_exception_only(err[0], err[1])).strip()


def main() -> None:
    """Run what the configuration on stdin names; the report goes to the real stdout only."""
    config = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = io.TextIOWrapper(open(os.devnull, "wb"))  # noqa: PTH123, SIM115

    def report(facts: dict[str, Any]) -> None:
        out.write(f"{config['nonce']} {json.dumps(facts)}\n")
        out.flush()

    link = Link(config["socket"], config["seconds"])
    finder: Any = Finder(link, config)
    sys.meta_path.insert(0, finder)
    os.chdir(config["root"])
    loader, count = unittest.TestLoader(), 0
    for name in config["modules"]:
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 (whatever it is, its tests are missing)
            report({"module": name, "note": _explained((type(error), error))[-_NOTE:]})
            continue
        results = Results(link, report)
        loader.loadTestsFromModule(module).run(results)
        count += results.testsRun
    report({"done": count})


if __name__ == "__main__":
    main()
