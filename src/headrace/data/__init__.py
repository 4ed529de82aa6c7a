"""Where tasks come from: packs found by entry point, the mix, the curriculum, and rendering.

`packs` finds domains by name, `source` mixes them into one reproducible stream, `curriculum`
decides on which tier each domain stands, `render` turns messages into token ids. May be known
by environments, evaluate and pipeline; knows neither policies nor verifiers beyond protocols.
"""

from headrace.data.curriculum import Ladder, Move
from headrace.data.packs import Catalogue
from headrace.data.source import DomainStatus, TaskSource

__all__ = ["Catalogue", "DomainStatus", "Ladder", "Move", "TaskSource"]
