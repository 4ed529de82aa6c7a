"""The loop and what surrounds it: `headrace.pipeline.session` starts and resumes runs.

Nothing is imported here, since the session loads torch.
"""

__all__: list[str] = []
