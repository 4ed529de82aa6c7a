"""The one way out of a sandbox with an allow-list: a proxy on the host that trusts nothing."""

from headrace.sandbox.egress.proxy import EgressProxy, ProxyLimits, ProxyStats

__all__ = ["EgressProxy", "ProxyLimits", "ProxyStats"]
