"""The checks, by what they are about; importing this package registers them.

Which driver they run on, and how, is in run.py.
"""

from npu_runtime.conformance.checks import (  # noqa: F401
    devices,
    events,
    memory,
    opening,
    programs,
    request_runs,
    requests,
    streams,
)

__all__: list[str] = []
