"""Models and the engine that samples from them and trains them.

Nothing is imported here: `sources` and `cache` are light, everything else loads torch.
"""

__all__: list[str] = []
