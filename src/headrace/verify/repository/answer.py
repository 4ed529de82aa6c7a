"""The hidden answer of a repository task: its tree, its tests, and what must pass.

May be known by the verifier, its specimens, and agent environments.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.verify.trees import check_path, check_tree

__all__ = ["RepositoryAnswer", "Weights"]

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0.0, le=600.0)]


class Weights(BaseModel):
    """How much an attempt that passes loses at most by redundant edits, and by steps beyond the
    budget; what passes weighs 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    edits: Share = 0.0
    steps: Share = 0.0


class RepositoryAnswer(BaseModel):
    """`files`: the tree as the policy sees it, and `tests`: the test files as they are run, both
    path to text; a path in both is a test that the policy sees, perhaps an older state of it.

    `fail_to_pass` and `pass_to_pass` hold unittest ids (`tests.test_x.Case.test_y`; the module is
    the path of its file with dots), together all tests of the test files. `modules` are top-level
    modules to import from the candidate beside those that `files` has. `reference_lines` is how
    many lines the reference adds and removes (0: not known), and an attempt may change
    `edit_factor` times as many for nothing; `step_budget` None is no budget. `call_s` bounds one
    call of candidate code, `run_s` all tests together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: dict[str, str]
    tests: Annotated[dict[str, str], Field(min_length=1)]
    fail_to_pass: Annotated[tuple[str, ...], Field(min_length=1)]
    pass_to_pass: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    reference_lines: Annotated[int, Field(ge=0)] = 0
    edit_factor: Annotated[float, Field(ge=1.0)] = 3.0
    step_budget: Annotated[int, Field(ge=1)] | None = None
    weights: Weights = Weights()
    call_s: Seconds = 5.0
    run_s: Seconds = 60.0

    @model_validator(mode="after")
    def _consistent(self) -> RepositoryAnswer:
        for path in {**self.files, **self.tests}:
            check_path(path)
        check_tree({**self.files, **self.tests})
        ids = self.expected
        if len(set(ids)) != len(ids):
            raise ValueError("a test is named twice")
        modules = set(self.test_modules)
        for name in ids:
            if not any(name.startswith(module + ".") for module in modules):
                raise ValueError(f"no test file has {name}")
        return self

    @property
    def expected(self) -> tuple[str, ...]:
        """The ids of all tests."""
        return (*self.fail_to_pass, *self.pass_to_pass)

    @property
    def test_modules(self) -> list[str]:
        """The modules among the test files that hold tests: `test*.py` and `*_test.py`."""
        names = [PurePosixPath(path) for path in sorted(self.tests) if path.endswith(".py")]
        return [
            module_of(str(path))
            for path in names
            if path.name.startswith("test") or path.name.endswith("_test.py")
        ]


def module_of(path: str) -> str:
    """The dotted name of a file's module.

    >>> module_of("tests/__init__.py"), module_of("a/b.py")
    ('tests', 'a.b')
    """
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)
