"""The task pack `code`: being written."""
