"""headrace: take a language model and make it reliably good at verifiable work.

Nothing is imported here, so that `headrace --help` stays instant and the vocabulary
(`headrace.types`) can be used without torch.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
