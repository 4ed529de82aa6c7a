"""The report of a run: one self-contained page for a person, derived from the record alone.

`gather` reads a run directory leniently, the sections turn what it found into markup, `page`
puts them together. May know the store and the recipe's schema; nothing of training.
"""

from headrace.observe.report.page import write_report

__all__ = ["write_report"]
