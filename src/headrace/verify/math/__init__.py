r"""The kind `math-answer`: a number, an expression, a set, an interval, a matrix or a text.

- `extract`: where the answer stands in an attempt; one place only;
- `labels`: nouns behind it that say nothing;
- `notation`, `numerals`, `units`, `reading`: what it says, as a structure with exact numbers;
- `reference`: `Task.answer` and its options;
- `compare`: whether the two say the same; asks an `Algebra` about expressions;
- `algebra`, `worker`: sympy and the parser of math-verify, in a child that can be killed;
- `verifier`: puts these together; `specimens` prove it; `differences` from math-verify.

Nothing here but `algebra` and `worker` imports sympy.
"""

from __future__ import annotations

from headrace.verify.kinds import Kind
from headrace.verify.math.differences import DIFFERENCES, Difference
from headrace.verify.math.specimens import specimens
from headrace.verify.math.verifier import REF, MathAnswer

__all__ = ["DIFFERENCES", "KIND", "Difference", "MathAnswer"]

KIND = Kind(
    id=REF.id,
    version=REF.version,
    title="A mathematical answer: exact numbers, expressions, sets, intervals, units, words",
    limits=(
        "One answer per attempt, at most 1000 characters (or four times the reference). Equality "
        "of expressions is proved or agrees to at least 60 digits and twice as many as any number "
        "in them has; `log` without a base is to base 10. It cannot see the form that a task asks "
        "for (expanded, factored), and an expression rearranged from the prompt passes where the "
        "reference is an expression. "
        "Five seconds of processor time for a comparison, then it is wrong."
    ),
    surfaces=MathAnswer.surfaces,
    specimens=specimens,
)
