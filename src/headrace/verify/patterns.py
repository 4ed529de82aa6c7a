"""A worker that searches a regular expression in hostile texts, where it may take forever.

A request is `{"pattern", "texts"}`, the reply whether one of them has a match. Knows nothing.
"""

from __future__ import annotations

import re

from headrace.types import Json
from headrace.verify.child import serve

__all__ = ["search"]


def search(request: Json) -> Json:
    """Whether one of the texts has a match; lines are lines to ^ and $."""
    pattern = re.compile(request["pattern"], re.MULTILINE)
    return any(pattern.search(text) is not None for text in request["texts"])


if __name__ == "__main__":
    serve(lambda: search)
