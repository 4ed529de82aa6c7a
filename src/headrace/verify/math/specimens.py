r"""Small tasks with which `math-answer` proves itself: what is right, and what only looks so.

Known by the kind's description.
"""

from __future__ import annotations

from headrace.verify.kinds import Specimen, Specimens
from headrace.verify.math.verifier import MathAnswer

__all__ = ["SPECIMENS", "specimens"]

SPECIMENS = (
    Specimen(
        prompt="What is 27 * 13?",
        answer=351,
        reference="27 * 10 = 270 and 27 * 3 = 81, so the answer is \\boxed{351}.",
        right=(
            "<think>27 * 13</think> <answer>351</answer>",
            "The final answer is 351.",
            "\\boxed{27 \\cdot 13 = 351}",
            "\\boxed{3.51 \\times 10^2}",
        ),
        wrong=(
            "\\boxed{27 * 13}",
            "\\boxed{13 \\cdot 27}",
            "\\boxed{350, 351}",
            "\\boxed{351\\%}",
            "\\boxed{351} or \\boxed{352}",
            "\\boxed{x}",
        ),
    ),
    Specimen(
        prompt="A bag holds 8 balls, 3 of them red. What part of the balls is red, in percent?",
        answer={"answer": "37.5\\%"},
        reference="3/8 of them: \\boxed{37.5\\%}",
        right=("\\boxed{0.375}", "\\boxed{\\frac{3}{8}}", "So it is 37.5 percent."),
        wrong=("\\boxed{37.5}", "\\boxed{3}", "\\boxed{62.5\\%}", "\\boxed{0.375\\%}"),
    ),
    Specimen(
        prompt="Find the positive root of $x^2 = 18$ in its simplest form.",
        answer="3\\sqrt{2}",
        reference="$x = \\sqrt{18} = 3\\sqrt{2}$, so \\boxed{3\\sqrt{2}}",
        right=("\\boxed{x = 3\\sqrt2}", "\\boxed{\\sqrt{2} \\cdot 3}", "answer: 3*sqrt(2)"),
        wrong=(
            "\\boxed{4.242640687119285}",
            "\\boxed{\\pm 3\\sqrt{2}}",
            "\\boxed{x^2 = 18}",
            "\\boxed{3\\sqrt{2} + 10^{-30}}",
        ),
    ),
    Specimen(
        prompt="Solve $x^2 - x - 6 = 0$ over the real numbers.",
        answer="\\{-2, 3\\}",
        reference="\\boxed{x = 3 \\text{ or } x = -2}",
        right=("\\boxed{\\{3, -2\\}}", "\\boxed{-2, 3}", "\\boxed{x \\in \\{-2, 3\\}}"),
        wrong=(
            "\\boxed{3}",
            "\\boxed{(-2, 3)}",
            "\\boxed{-3, -2, 2, 3}",
            "\\boxed{[-2, 3]}",
            "\\boxed{x^2 - x - 6 = 0}",
        ),
    ),
    Specimen(
        prompt="For which x is $2x < 25$ and $x$ positive?",
        answer={"answer": "0 < x < \\frac{25}{2}"},
        reference="\\boxed{0 < x < 12.5}",
        right=("\\boxed{x \\in (0, 12.5)}", "\\boxed{\\frac{25}{2} > x > 0}"),
        wrong=(
            "\\boxed{[0, 12.5]}",
            "\\boxed{(0, 12.5)}",
            "\\boxed{(-\\infty, \\infty)}",
            "\\boxed{0 < y < 12.5}",
            "\\boxed{0 < x \\le 12.5}",
        ),
    ),
    Specimen(
        prompt="A car drives 75 km in 50 minutes. How fast is that, in km/h?",
        answer={"answer": "90 km/h"},
        reference="\\boxed{90\\text{ km/h}}",
        right=("\\boxed{90.0 km per hour}", "The speed is 90 kilometers per hour."),
        wrong=("\\boxed{90}", "\\boxed{90\\text{ m/s}}", "\\boxed{1.5\\text{ km/h}}"),
    ),
    Specimen(
        prompt="What is the reciprocal of $2004!$ (as an expression)?",
        answer="\\frac{1}{2004!}",
        reference="\\boxed{\\frac{1}{2004!}}",
        right=("\\boxed{(2004!)^{-1}}", "\\boxed{\\frac{2005}{2005!}}"),
        wrong=("\\boxed{\\frac{1}{2006!}}", "\\boxed{0}", "\\boxed{2004!}"),
    ),
    Specimen(
        prompt="On which day of the week was 1 January 2001?",
        answer="\\text{Monday}",
        reference="It was a \\boxed{\\text{Monday}}.",
        right=("\\boxed{monday}", "<answer>Monday</answer>"),
        wrong=("\\boxed{Monday or Tuesday}", "\\boxed{M}", "\\boxed{Mоnday}", "\\boxed{day}"),
    ),
)


def specimens() -> Specimens:
    """The domain that the kind is audited with."""
    return Specimens("math-answer-specimens", MathAnswer(), SPECIMENS)
