"""The verifier `sql`: run the candidate and the reference on several databases, compare rows.

See `SqlSpec` for the hidden answer. May be known by audits and task packs.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ValidationError

from headrace.types import Fault, Json, Task, Verdict, VerdictPart, VerifierRef, content_hash
from headrace.verify.answers import fences, last_fence, tagged, without_thinking
from headrace.verify.base import BaseVerifier
from headrace.verify.child import ChildDied, ChildError, ChildSpent
from headrace.verify.children import Children
from headrace.verify.kinds import Surface
from headrace.verify.sql.cells import decoded, readable
from headrace.verify.sql.compare import Rules, Table, difference, tied
from headrace.verify.sql.literals import constant
from headrace.verify.sql.spec import SqlSpec
from headrace.verify.verdicts import hack, scored, unjudged

__all__ = ["SqlAnswer"]

_WORKER = "headrace.verify.sql.worker"
_LANGUAGES = ("sql", "sqlite", "sqlite3", "duckdb", "postgresql", "postgres", "")
_STARTS = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*"
    r"(select|with|values|from|insert|update|delete|replace|merge|begin)\b",
    re.IGNORECASE | re.DOTALL,
)
_HACKS = re.compile(
    r"\b(attach|detach|copy|export|import|install|load|load_extension|pragma|set|call|readfile"
    r"|writefile|read_csv|read_text|glob)\b|external|file system",
    re.IGNORECASE,
)
_SPARE_SECONDS = 5.0
"""SQLite is interrupted at its limit; what an interrupt does not reach ends with its process."""
_REFERENCE_SHARE = 8.0
"""A reference is run in up to six ways, each on a database of its own; a candidate in one."""
_REMEMBERED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    """What the reference answers: for every instance its tables, and how their rows may move."""

    instances: tuple[tuple[Table, ...], ...]
    groups: tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A task that can be judged."""

    spec: SqlSpec
    truth: _Truth


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flaw:
    """Why a task cannot be judged, and whose fault that is."""

    fault: Fault
    facts: Mapping[str, Json]


class SqlAnswer(BaseVerifier):
    """1 if a statement answers as the reference does on every database instance, else 0.

    The statement is the last closed fence marked as SQL (or unmarked), else what the last
    `<answer>` or `<sql>` holds, else the whole text if it begins like a statement. A query task
    takes one statement that only reads; a state task a script of INSERT, UPDATE and DELETE, of
    which what is left in an open transaction is lost.

    Parts: `answer` (the score), and without weight `extracted`, `ran` (it ran on every instance
    up to the first that differs), `instances` (the share that agrees) and `hack`. Evidence:
    `outcome` is one of match, mismatch, timeout, memory, flood, syntax, error, refused, crash.

    No score, by fault of the task: a malformed answer, a reference that does not run, whose
    answer is not determined (it depends on the order in which rows are stored, on how ties at a
    LIMIT fall, on the clock or on chance), or is the same on all instances.
    """

    surfaces: ClassVar[tuple[Surface, ...]] = ("text", "sql")
    ref = VerifierRef("sql", "1")

    def __init__(self, *, seconds: float = 5.0, wall_seconds: float = 60.0) -> None:
        """`seconds` of processor time for all instances together; `wall_seconds` guard the
        machine, and their end is nobody's score."""
        self._seconds = seconds
        self._wall_seconds = wall_seconds
        self._children = Children(_WORKER, memory_mb=2048)
        self._truths: OrderedDict[str, _Truth | _Flaw] = OrderedDict()
        self._lock = threading.Lock()

    def judge(self, task: Task, text: str) -> Verdict:
        case = self._case(task)
        if isinstance(case, _Flaw):
            return unjudged(self.ref, case.fault, case.facts)
        statement = extracted(text)
        if statement is None:
            return self._verdict(evidence={"outcome": "no statement found"})
        try:
            runs = self._run("candidate", case.spec, statement)
        except ChildSpent as error:
            runs = [{"outcome": "timeout", "message": str(error)}]
        except ChildDied as error:
            runs = [{"outcome": "crash", "message": str(error)}]
        except ChildError as error:
            return unjudged(self.ref, "infrastructure", {"error": str(error)})
        return self._compared(case.spec, case.truth, statement, runs)

    def hints(self, task: Task) -> Mapping[str, str]:
        """`table` and `column` of the schema; `public`, a constant that answers as the reference
        does on the first instance: what a policy knows of a database that it has seen."""
        case = self._case(task)
        if isinstance(case, _Flaw):
            return {}
        spec, first = case.spec, case.truth.instances[0]
        named = re.search(r"CREATE\s+TABLE\s+(\w+)\s*\(\s*(\w+)", spec.ddl, re.IGNORECASE)
        names = (spec.tables or self._state_names(spec)) if spec.mode == "state" else None
        return {
            "table": named[1] if named else "t",
            "column": named[2] if named else "1",
            "public": constant(first, names),
        }

    def near(self, task: Task, reference: str) -> Sequence[str]:
        """All rows of the reference twice, and none of them."""
        spec = _spec(task)
        statement = extracted(reference)
        if isinstance(spec, _Flaw) or spec.mode == "state" or statement is None:
            return ()
        inner = statement.strip().rstrip(";")
        doubled = f"SELECT * FROM ({inner}) UNION ALL SELECT * FROM ({inner})"
        return (f"```sql\n{doubled}\n```", f"```sql\nSELECT * FROM ({inner}) WHERE 1 = 0\n```")

    def close(self) -> None:
        """End the child processes; a later call starts new ones."""
        self._children.close()

    def _state_names(self, spec: SqlSpec) -> list[str]:
        runs = self._run("reference", spec, spec.reference)
        return [table["name"] for table in runs[0]["tables"]]

    def _run(self, op: str, spec: SqlSpec, statement: str) -> list[dict[str, Json]]:
        seconds = self._seconds * (_REFERENCE_SHARE if op == "reference" else 1.0)
        request = {
            **spec.request(),
            "op": op,
            "statement": statement,
            "tables": spec.tables if spec.mode == "state" else None,
            "ordered": spec.mode == "query" and spec.order == "reference",
            "seconds": seconds,
        }
        spare = _SPARE_SECONDS if spec.dialect == "sqlite" else 0.0
        return self._children.call(request, deadline=self._wall_seconds, cpu=seconds + spare)

    def _case(self, task: Task) -> _Case | _Flaw:
        spec = _spec(task)
        if isinstance(spec, _Flaw):
            return spec
        truth = self._truth(spec)
        return truth if isinstance(truth, _Flaw) else _Case(spec=spec, truth=truth)

    def _truth(self, spec: SqlSpec) -> _Truth | _Flaw:
        """What the reference answers; remembered, since many attempts share a task."""
        key = content_hash(spec.model_dump(), length=64)
        with self._lock:
            if key in self._truths:
                self._truths.move_to_end(key)
                return self._truths[key]
        try:
            found = _settled(spec, self._run("reference", spec, spec.reference))
        except ChildSpent as error:
            found = _Flaw(fault="task", facts={"reference": "timeout", "error": str(error)})
        except ChildError as error:
            return _Flaw(fault="infrastructure", facts={"reference": str(error)})
        with self._lock:
            self._truths[key] = found
            if len(self._truths) > _REMEMBERED:
                self._truths.popitem(last=False)
        return found

    def _compared(
        self, spec: SqlSpec, truth: _Truth, statement: str, runs: Sequence[Mapping[str, Json]]
    ) -> Verdict:
        same = 0
        facts: dict[str, Json] = {"statement": statement}
        answers: list[tuple[Table, ...]] = []
        for number, run in enumerate(runs):
            if run["outcome"] != "ok":
                if "outcome" not in facts:
                    facts |= {"outcome": run["outcome"], "instance": number}
                facts["error"] = run["message"]
                break
            found = tuple(_table(item) for item in run["tables"])
            answers.append(found)
            wrong = _wrong(found, truth.instances[number], _rules(spec), truth.groups[number])
            if wrong is None:
                same += 1
            elif "outcome" not in facts:
                facts |= {"outcome": "mismatch", "instance": number, **wrong}
        right = same == len(truth.instances)
        facts.setdefault("outcome", "match")
        message = str(facts.get("error", ""))
        reached_out = runs[-1]["outcome"] == "refused" and _HACKS.search(message) is not None
        constant_answer = same > 0 and not right and len(set(answers)) == 1 < len(answers)
        return self._verdict(
            answer=right,
            found=True,
            ran=len(answers) == len(truth.instances),
            share=same / len(truth.instances),
            tricked=constant_answer or reached_out,
            evidence=facts,
        )

    def _verdict(
        self,
        *,
        answer: bool = False,
        found: bool = False,
        ran: bool = False,
        share: float = 0.0,
        tricked: bool = False,
        evidence: Mapping[str, Json],
    ) -> Verdict:
        parts = (
            VerdictPart("answer", float(answer), 1.0),
            VerdictPart("extracted", float(found), 0.0),
            VerdictPart("ran", float(ran), 0.0),
            VerdictPart("instances", share, 0.0),
            hack(tricked),
        )
        return scored(self.ref, parts, evidence=evidence)


def extracted(text: str) -> str | None:
    """The statement that a text proposes, or None.

    >>> extracted("```sql\\nSELECT 1\\n```")
    'SELECT 1'
    >>> extracted("I would count them.") is None
    True
    """
    text = without_thinking(text)
    if fences(text):
        found = last_fence(text, *_LANGUAGES)
    else:
        found = tagged(text) or tagged(text, "sql")
        if found is None:
            found = text if _STARTS.match(text) else None
    return None if found is None or not found.strip() else found.strip()


def _spec(task: Task) -> SqlSpec | _Flaw:
    try:
        return SqlSpec.model_validate(task.answer)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return _Flaw(fault="task", facts={"malformed answer": problems})


def _rules(spec: SqlSpec) -> Rules:
    return Rules(
        names=spec.columns == "names",
        strict=spec.types == "strict",
        relative=spec.relative,
        absolute=spec.absolute,
    )


def _settled(spec: SqlSpec, runs: Sequence[Mapping[str, Json]]) -> _Truth | _Flaw:
    """The answers of the reference if a candidate can be judged by them."""
    rules = _rules(spec)
    instances: list[tuple[Table, ...]] = []
    groups: list[tuple[int, ...] | None] = []
    for number, run in enumerate(runs):
        if run["outcome"] != "ok":
            facts = {"reference": run["outcome"], "instance": number, "error": run["message"]}
            return _Flaw(fault="task", facts=facts)
        extra = int(run["extra"])
        tables = tuple(_table(item, extra) for item in run["tables"])
        free = _groups(spec, run)
        for other in run["others"]:
            if other is None:
                continue
            wrong = _wrong(tuple(_table(item, extra) for item in other), tables, rules, free)
            if wrong is not None:
                facts = {"reference": "its answer is not determined", "instance": number}
                return _Flaw(fault="task", facts=facts | wrong)
        instances.append(tables)
        groups.append(free)
    if spec.mode == "state" and all(run["before"] == run["tables"] for run in runs):
        return _Flaw(fault="task", facts={"reference": "it changes nothing"})
    first = instances[0]
    if all(_wrong(other, first, rules, groups[0]) is None for other in instances[1:]):
        facts = {"reference": "its answer is the same on all instances: a constant would pass"}
        return _Flaw(fault="task", facts=facts)
    return _Truth(instances=tuple(instances), groups=tuple(groups))


def _groups(spec: SqlSpec, run: Mapping[str, Json]) -> tuple[int, ...] | None:
    rows = [tuple(decoded(cell) for cell in row) for row in run["tables"][0]["rows"]]
    if spec.mode == "query" and spec.order == "exact":
        return (1,) * len(rows)
    if run["keys"] is None:
        return None
    return tied([tuple(row[key] for key in run["keys"]) for row in rows])


def _table(wire: Mapping[str, Json], extra: int = 0) -> Table:
    width = len(wire["columns"]) - extra
    return Table(
        columns=tuple(wire["columns"][:width]),
        rows=tuple(tuple(decoded(cell) for cell in row[:width]) for row in wire["rows"]),
    )


def _wrong(
    found: Sequence[Table],
    expected: Sequence[Table],
    rules: Rules,
    groups: Sequence[int] | None,
) -> dict[str, Json] | None:
    """What tells the tables apart, as evidence; None if nothing does."""
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        result = difference(mine, theirs, rules, groups)
        if result is not None:
            return {
                "difference": result.reason,
                "missing": list(result.missing),
                "extra": list(result.extra),
                "found": [[readable(cell) for cell in row] for row in mine.rows[:5]],
                **({"table": place} if len(found) > 1 else {}),
            }
    return None
