"""Calls that real networks make, as cases; recording.py wrote them down."""

from npu_ops.conformance.models.recorded import RECORDED, model_cases, model_names

__all__ = ["RECORDED", "model_cases", "model_names"]
