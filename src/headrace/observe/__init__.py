"""What a person sees of a run: console, log file, metrics table, report.

Import the module that you need: the console loads rich, the metrics table pyarrow.
"""

from headrace.observe.listener import Listener, QuietListener, StepLine

__all__ = ["Listener", "QuietListener", "StepLine"]
