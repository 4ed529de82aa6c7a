"""The task pack `extract`: being written."""
