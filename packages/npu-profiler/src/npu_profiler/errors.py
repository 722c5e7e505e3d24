"""The error a user of the profiler can meet: a wrong path, a second recording at once.

Not under `npu_runtime.errors.NpuError`: importing that tree imports torch, and the profiler must
not import torch before the program it runs does (see `import_hook.py`).
"""

__all__ = ["TraceError"]


class TraceError(RuntimeError):
    """What was asked of the profiler cannot be done.

    Args:
        message: Subject, rule, received and next step.
        code: A stable word for programs and for the documentation; shown in brackets.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code
