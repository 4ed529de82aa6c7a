"""From what a person wrote to a recipe: sources, layers, `--set`, origins, clear refusals.

`sources` knows where recipes come from, `layers` how one covers another, `schema` which keys
there are, `problems` how to say what is wrong, and `resolve` puts them together.
"""

from headrace.configure.resolve import (
    Resolved,
    ResolvedPlan,
    load,
    load_recipe,
    parse_plan,
    parse_recipe,
)
from headrace.configure.schema import Key, keys
from headrace.configure.sources import Shipped, shipped_recipes, shipped_text

__all__ = [
    "Key",
    "Resolved",
    "ResolvedPlan",
    "Shipped",
    "keys",
    "load",
    "load_recipe",
    "parse_plan",
    "parse_recipe",
    "shipped_recipes",
    "shipped_text",
]
