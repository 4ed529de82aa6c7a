"""The asynchronous pipeline: what a lag gains, the queue, fairness, the store, and chaos.

python benchmarks/pipeline.py --check                all but chaos, exit 1 if a bar falls short
python benchmarks/pipeline.py --quick --json FILE    smaller, in a few minutes
python benchmarks/pipeline.py --only broker,store    one or more parts
python benchmarks/pipeline.py --only chaos           half an hour of kills
"""

from __future__ import annotations

import sys

import pipeline_async
import pipeline_broker
import pipeline_chaos
import pipeline_overhead
import pipeline_store
from rows import Part, run_parts

PARTS: dict[str, Part] = {
    "broker": pipeline_broker.rows,
    "store": pipeline_store.rows,
    "async": pipeline_async.rows,
    "overhead": pipeline_overhead.rows,
    "chaos": pipeline_chaos.rows,
}
USUAL = [name for name in PARTS if name != "chaos"]

if __name__ == "__main__":
    sys.exit(run_parts(__doc__ or "", PARTS, usual=USUAL))
