"""The kind `data-analysis`: a program computes tables and numbers from files, and those count.

The program runs in a sandbox that holds the input files and nothing else; what it wrote is read
and compared on this side. Several cases with the same questions and other data, of which the
policy has seen one at most, keep a program from knowing its answers by heart. Knows `tables`;
may be known by the audit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.errors import InfrastructureError, UsageError
from headrace.sandbox.spec import ExecLimits, Outcome, Sandbox, SandboxFailure, SandboxRefused
from headrace.types import Json, Task, Verdict, VerdictPart, VerifierRef
from headrace.verify import boxes
from headrace.verify.answers import last_fence, without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.boxes import PROGRAMS, Boxes
from headrace.verify.kinds import Kind, Specimen, Specimens
from headrace.verify.tables import BadData, Rules, difference, equal, read_json, read_table
from headrace.verify.trees import TreeError, archive, check_path, check_tree
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["KIND", "AnalysisAnswer", "DataAnalysis"]

_LANGUAGES = ("python", "py", "python3", "")
_MOST_OUTPUT = 4 * 2**20
_START_S = 30.0
Value = str | bool | int | float | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tolerances(_Strict):
    """The fields of `tables.Rules`; see there."""

    absolute: Annotated[float, Field(ge=0.0)] = 1e-9
    relative: Annotated[float, Field(ge=0.0)] = 1e-6
    missing: Literal["equal", "never"] = "equal"
    grouped: bool = False
    percent: bool = False
    row_order: bool = False
    column_order: bool = False
    extra_columns: bool = False

    def rules(self) -> Rules:
        """As the comparison takes them."""
        return Rules(**self.model_dump())


class TableOutput(_Strict):
    """A table at `path` (below the working directory, or "stdout"): `columns` and `rows` of what
    must be in it. A missing value is null."""

    kind: Literal["table"]
    path: str
    format: Literal["csv", "json"] = "csv"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    rows: tuple[tuple[Value, ...], ...]
    weight: Annotated[float, Field(gt=0.0)] = 1.0

    @model_validator(mode="after")
    def _square(self) -> TableOutput:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("a row that is not as long as the columns")
        return self


class NumbersOutput(_Strict):
    """Named values in a JSON object at `path` (or "stdout"), exactly these."""

    kind: Literal["numbers"]
    path: str
    values: Annotated[dict[str, Value], Field(min_length=1)]
    weight: Annotated[float, Field(gt=0.0)] = 1.0


class NumberOutput(_Strict):
    """One number, alone in the file at `path` (or on "stdout")."""

    kind: Literal["number"]
    path: str
    value: float | int
    weight: Annotated[float, Field(gt=0.0)] = 1.0


Output = Annotated[TableOutput | NumbersOutput | NumberOutput, Field(discriminator="kind")]


class Case(_Strict):
    """Input `files` (path to text) and what must come out of them, by name."""

    files: dict[str, str]
    outputs: Annotated[dict[str, Output], Field(min_length=1)]


class AnalysisAnswer(_Strict):
    """`cases` with the same names of outputs; `seconds` bounds the program in each."""

    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
    tolerances: Tolerances = Tolerances()
    seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0

    @model_validator(mode="after")
    def _consistent(self) -> AnalysisAnswer:
        for case in self.cases:
            for path in case.files:
                check_path(path)
            check_tree(case.files)
            if case.outputs.keys() != self.cases[0].outputs.keys():
                raise ValueError("cases with other outputs than the first")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """One case: how the program ended, and the content of each output, or why there is none."""

    outcome: str
    words: str
    data: Mapping[str, bytes | str]


class DataAnalysis(BaseVerifier):
    """Whether a program computes the tables and numbers of a task.

    `task.answer` is an `AnalysisAnswer` as JSON. The attempt is the last block called python (or
    called nothing); it runs in a fresh directory for each case, with the case's files. Each
    output is a part with its weight: 1 if it is right in every case, else 0. `cases` (the
    share of outputs that are right, over all cases), `extracted` and `finished` (the program
    ended with exit code 0 in every case) inform only.
    """

    ref = VerifierRef("data-analysis", "1")
    surfaces = ("table",)

    def __init__(self, pool: Boxes | None = None) -> None:
        self._pool = pool

    def judge(self, task: Task, text: str) -> Verdict:
        """The verdict on the last program in `text`."""
        try:
            answer = AnalysisAnswer.model_validate(task.answer)
        except (ValidationError, TreeError) as error:
            return unjudged(self.ref, "task", f"the task's answer is no analysis: {error}")
        program = last_fence(without_thinking(text), *_LANGUAGES)
        if program is None or not program.strip():
            parts = [VerdictPart(name, 0.0, o.weight) for name, o in _outputs(answer).items()]
            parts += [VerdictPart("extracted", 0.0, 0.0), hack(False)]
            return scored(self.ref, parts, evidence={"refused": "there is no python block"})
        job = partial(_run, answer=answer, program=program)
        bound = _START_S + len(answer.cases) * (answer.seconds + 5.0)
        try:
            ran = (self._pool or boxes.shared()).run(PROGRAMS, job, timeout_s=bound)
        except (InfrastructureError, SandboxRefused) as error:
            return unjudged(self.ref, "infrastructure", str(error))
        return self._verdict(answer, ran)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`path`: where the first output is expected ("stdout" or a file), and `input`: the
        path of an input file ("" without one)."""
        case = AnalysisAnswer.model_validate(task.answer).cases[0]
        path = next(iter(case.outputs.values())).path
        return {"path": path, "input": next(iter(sorted(case.files)), "")}

    def _verdict(self, answer: AnalysisAnswer, ran: Sequence[_Ran]) -> Verdict:
        rules = answer.tolerances.rules()
        wrong: dict[str, Json] = {}
        right = dict.fromkeys(_outputs(answer), True)
        held = 0
        for number, (case, run) in enumerate(zip(answer.cases, ran, strict=True)):
            for name, output in case.outputs.items():
                why = _wrong(output, run.data[name], rules)
                held += not why
                if why:
                    right[name] = False
                    wrong[f"case {number}, {name}"] = why
        total = len(answer.cases) * len(right)
        ended = [run for run in ran if run.outcome != "exit code 0"]
        facts: dict[str, Json] = {"wrong": wrong, "cases": len(ran)}
        if ended:
            facts |= {"ended": ended[0].outcome, "stderr": ended[0].words}
        weights = {name: output.weight for name, output in _outputs(answer).items()}
        parts = [VerdictPart(name, float(good), weights[name]) for name, good in right.items()]
        parts += [
            VerdictPart("cases", held / total, 0.0),
            VerdictPart("extracted", 1.0, 0.0),
            VerdictPart("finished", float(not ended), 0.0),
            hack(False),
        ]
        return scored(self.ref, parts, evidence=facts)


def _outputs(answer: AnalysisAnswer) -> Mapping[str, TableOutput | NumbersOutput | NumberOutput]:
    return answer.cases[0].outputs


async def _run(box: Sandbox, answer: AnalysisAnswer, program: str) -> list[_Ran]:
    """Every case, one after the other, each in a directory of its own."""
    await box.put_file("/workspace/main.py", program.encode("utf-8", "replace"))
    return [await _case(box, number, case, answer) for number, case in enumerate(answer.cases)]


async def _case(box: Sandbox, number: int, case: Case, answer: AnalysisAnswer) -> _Ran:
    place = f"/workspace/case{number}"
    limits = ExecLimits(output_bytes=_MOST_OUTPUT)
    try:
        await box.put(archive(case.files), place)
        result = await box.exec(
            ["python3", "-B", "/workspace/main.py"],
            timeout_s=answer.seconds,
            cwd=place,
            limits=limits,
        )
    except UsageError as error:  # an earlier case has filled the disk or taken the place
        refused = dict.fromkeys(case.outputs, str(error))
        return _Ran(outcome="not started", words=str(error), data=refused)
    missing = result.exit_code == 127 and result.stderr.data.startswith(b"cannot start")
    if result.outcome is Outcome.CRASH or missing:
        raise SandboxFailure(f"the program does not run: {result.stderr.text[-200:]}")
    data: dict[str, bytes | str] = {}
    for name, output in case.outputs.items():
        if output.path == "stdout":
            whole = not result.stdout.truncated
            data[name] = result.stdout.data if whole else "more output than is read"
            continue
        try:
            data[name] = await box.get_file(f"{place}/{output.path}", limit_mb=_MOST_OUTPUT >> 20)
        except UsageError as error:
            data[name] = str(error)
    code = f"exit code {result.exit_code}" if result.signal is None else "killed by a signal"
    return _Ran(
        outcome=code if result.outcome is Outcome.RESULT else result.outcome.value,
        words=result.stderr.text[-400:],
        data=data,
    )


def _wrong(
    output: TableOutput | NumbersOutput | NumberOutput, data: bytes | str, rules: Rules
) -> str:
    """Why an output is not what is wanted; "" if it is."""
    if isinstance(data, str):
        return data
    try:
        if isinstance(output, TableOutput):
            table = read_table(data, output.format, delimiter=output.delimiter)
            return difference(table, output.columns, output.rows, rules)
        if isinstance(output, NumberOutput):
            text = data.decode("utf-8-sig", "replace").strip()
            right = equal(text, output.value, rules)
            return "" if right else f"{text[:80]!r} and not {output.value!r}"
        found = read_json(data)
    except BadData as error:
        return str(error)
    if not isinstance(found, dict) or found.keys() != output.values.keys():
        return f"no object with just {', '.join(output.values)}"
    wrong = [name for name, value in output.values.items() if not equal(found[name], value, rules)]
    return "; ".join(f"{name}: {found[name]!r} and not {output.values[name]!r}" for name in wrong)


# --- specimens -----------------------------------------------------------------------------


def _python(program: str) -> str:
    return f"```python\n{program}```\n"


_SALES = "region,month,amount\nnorth,1,10.5\nsouth,1,4\nnorth,2,3\nsouth,2,8.25\neast,2,1\n"
_OTHER_SALES = "region,month,amount\nwest,5,2\nwest,6,2.5\neast,5,0.1\neast,6,0.2\n"
_SUMS = """\
import csv
from collections import defaultdict

amounts = defaultdict(list)
with open("sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        amounts[row["region"]].append(float(row["amount"]))
with open("sums.csv", "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["region", "total", "count"])
    for region, values in amounts.items():
        out.writerow([region, sum(values), len(values)])
"""


def _sums() -> Specimen:
    def case(sales: str, rows: list[list[Json]]) -> Json:
        columns = ["region", "total", "count"]
        table = {"kind": "table", "path": "sums.csv", "columns": columns, "rows": rows}
        return {"files": {"sales.csv": sales}, "outputs": {"sums": table}}

    cases: list[Json] = [
        case(_SALES, [["east", 1.0, 1], ["north", 13.5, 2], ["south", 12.25, 2]]),
        case(_OTHER_SALES, [["east", 0.3, 2], ["west", 4.5, 2]]),
    ]
    return Specimen(
        prompt="sales.csv has the columns region, month and amount. Write a Python program "
        "(standard library) that writes sums.csv with region, total (of amount) and count for "
        "each region. "
        f"For example, with\n{_SALES}the row of south is south,12.25,2.",
        answer={"cases": cases},
        reference=_python(_SUMS),
        wrong=(
            _python(_SUMS.replace("sum(values)", "max(values)")),
            _python(_SUMS.replace("len(values)", "len(values) + 0.01")),
            _python(
                _SUMS.replace(
                    "for region, values",
                    "for region, values in amounts.items():\n"
                    "        out.writerow([region, 0, 0])\n    for region, values",
                )
            ),
            _python(
                'open("sums.csv", "w").write("region,total,count\\n'
                'east,1,1\\nnorth,13.5,2\\nsouth,12.25,2\\n")\n'
            ),
            _python(_SUMS.replace('"sums.csv"', '"sum.csv"')),
        ),
        right=(
            _python(
                _SUMS.replace(
                    '["region", "total", "count"]', '["count", "region", "total"]'
                ).replace(
                    "[region, sum(values), len(values)]", "[len(values), region, sum(values)]"
                )
            ),
        ),
    )


_STATS = """\
import json
import statistics

with open("numbers.json") as file:
    numbers = [x for x in json.load(file) if x is not None]
spread = statistics.stdev(numbers) if len(numbers) > 1 else None
print(json.dumps({"mean": statistics.fmean(numbers), "stdev": spread, "missing": MISSING}))
"""


def _stats() -> Specimen:
    def case(numbers: str, mean: float, stdev: float | None, missing: int) -> Json:
        values = {"mean": mean, "stdev": stdev, "missing": missing}
        output = {"kind": "numbers", "path": "stdout", "values": values}
        return {"files": {"numbers.json": numbers}, "outputs": {"stats": output}}

    cases: list[Json] = [
        case("[2, 4, 4, 4, 5, 5, 7, 9, null]", 5.0, math.sqrt(32 / 7), 1),
        case("[3, null, null]", 3.0, None, 2),
    ]
    program = _STATS.replace("MISSING", "json.load(open('numbers.json')).count(None)")
    return Specimen(
        prompt="numbers.json is a list of numbers and nulls. Write a Python program that prints a "
        "JSON object with their mean, their sample standard deviation stdev (null if it has "
        "none) and how many are missing.",
        answer={"cases": cases},
        reference=_python(program),
        wrong=(
            _python(program.replace("statistics.stdev", "statistics.pstdev")),
            _python(_STATS.replace("MISSING", "True")),
            _python(program.replace("print(", "print('The answer:'); print(")),
        ),
    )


def specimens() -> Specimens:
    """A table in a file and numbers on standard output, each with data that nobody has seen."""
    return Specimens(DataAnalysis.ref.id, DataAnalysis(), (_sums(), _stats()))


_LIMITS = """\
Programs are Python with what the sandbox's image has (by default the standard library). Only \
what comes out is judged, not how: with a single case a program can know the answer by heart. \
Tables are CSV with a header line or JSON lists of objects. Each output is all or nothing; rows \
that differ only in numbers with tolerances are matched one by one up to 200 of them, beyond that \
in sorted order."""

KIND = Kind(
    id=DataAnalysis.ref.id,
    version=DataAnalysis.ref.version,
    title="A program computes the right tables and numbers from data files",
    limits=_LIMITS,
    surfaces=("table",),
    specimens=specimens,
)
