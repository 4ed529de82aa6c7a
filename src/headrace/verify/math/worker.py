"""The child process in which expressions are parsed and compared.

Started by the verifier as `python -m headrace.verify.math.worker`. Requests and replies:

- `{"answer", "said"}` -> `{"same": bool, "notes": [str]}`, or `{"unreadable": "reference" or
  "answer", "notes"}`, or `{"expensive": str}` where memory or the stack ran out on the answer;
- `{"answer", "said": null}` only reads the reference: `{"same": null, "notes": []}` if it can.

A reply is a pure function of its request.
"""

from __future__ import annotations

from collections.abc import Callable

from sympy.polys.polyerrors import BasePolynomialError

from headrace.types import Json
from headrace.verify.child import serve
from headrace.verify.math.algebra import SympyAlgebra, TooExpensive, parse, real_set
from headrace.verify.math.compare import Comparison
from headrace.verify.math.reading import Region, Union, Unreadable, leaves, name_of, readings
from headrace.verify.math.reference import Reference

__all__ = ["answer", "main"]

_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BasePolynomialError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""What sympy raises on expressions it cannot handle; anything else ends the process."""


def answer(request: Json) -> Json:
    """The reply to one request."""
    reference = Reference.of(request["answer"])
    try:
        _check(reference)
    except (*_ERRORS, TooExpensive) as error:
        return {"unreadable": "reference", "notes": [_why(error)]}
    said: str | None = request["said"]
    if said is None:
        return {"same": None, "notes": []}
    try:
        return _compare(reference, said)
    except (MemoryError, RecursionError, TooExpensive) as error:
        return {"expensive": f"{type(error).__name__}: {error}"}
    except _ERRORS as error:
        return {"unreadable": "answer", "notes": [_why(error)]}


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"


def _check(reference: Reference) -> None:
    """Parses all expressions of the reference; Unreadable for one that cannot be."""
    for reading in readings(reference.text, reference.manner()):
        region = reading.region if isinstance(reading, Region) else reading
        if isinstance(region, Union):
            real_set(region)
        for leaf in leaves(reading):
            if name_of(leaf) is None:
                parse(leaf.text)


def _compare(reference: Reference, said: str) -> Json:
    algebra = SympyAlgebra()
    comparison = Comparison(reference, algebra)
    same = comparison.run(said)
    return {"same": same, "notes": [*comparison.notes, *algebra.notes]}


def _load() -> Callable[[Json], Json]:
    parse("\\sqrt{2} + \\frac{x}{3}")
    return answer


def main() -> None:
    """Answer requests until the parent is gone."""
    serve(_load)


if __name__ == "__main__":
    main()
