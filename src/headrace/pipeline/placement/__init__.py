"""Where work runs: `base` is the protocol, `inside` and `processes` are two ways to keep it.

Nothing is imported here, since every worker process starts in this package.
"""

__all__: list[str] = []
