"""Sandboxes by Landlock and seccomp, without root and without a runtime (package sandlock)."""
