"""Warm sandboxes under leases: `Pool` lends them, `Leases` outlive a killed owner, `reap`
removes what one left. Known by environments, callers of verifiers and the command line; knows
backends by protocol.
"""

from headrace.sandbox.pool.leases import Leases
from headrace.sandbox.pool.options import PoolOptions
from headrace.sandbox.pool.pool import Pool
from headrace.sandbox.pool.reaper import Reaped, reap
from headrace.sandbox.pool.stats import PoolStats

__all__ = ["Leases", "Pool", "PoolOptions", "PoolStats", "Reaped", "reap"]
