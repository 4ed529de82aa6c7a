"""The kind `repository-patch`: a change to a small repository, judged by tests out of its reach.

`attempts` reads what a policy wrote (`patches` the unified diffs), `run` makes a test run in a
sandbox of two programs: `runner` has the tests and `hands` has the candidate's modules. Known by
the audit and by agent environments.
"""

from __future__ import annotations

from headrace.verify.kinds import Kind
from headrace.verify.repository.answer import RepositoryAnswer, Weights
from headrace.verify.repository.specimens import specimens
from headrace.verify.repository.verifier import RepositoryPatch

__all__ = ["KIND", "RepositoryAnswer", "RepositoryPatch", "Weights"]

_LIMITS = """\
Tests are unittest files of Python's standard library. They see the candidate's modules through \
stand-ins: plain values, exceptions, and objects whose methods, attributes, items and operators \
can be used come across; functions of the test (callbacks), patched modules, subclasses of the \
candidate's classes, standard input and shared files do not, and a test that needs one fails. A \
test that only compares the candidate's objects with each other, or asks only for their truth, \
measures what the candidate's own methods say. Whatever a test passes as an argument the candidate \
knows. Needs a sandbox with two users and Python 3.9 or later in its image."""

KIND = Kind(
    id=RepositoryPatch.ref.id,
    version=RepositoryPatch.ref.version,
    title="A patch to a repository makes the tests pass that should, and breaks none",
    limits=_LIMITS,
    surfaces=("patch",),
    specimens=specimens,
)
