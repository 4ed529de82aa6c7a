"""The behaviour of `headrace.sandbox.spec` as promises that any backend can be held to.

One module per kind of promise, each with its `PROMISES`; `conformance` runs them. Knows the
words of the sandbox layer and no backend.
"""

from __future__ import annotations

__all__: list[str] = []
