"""Calls recorded from real networks, as cases."""

from npu_ops.op_conformance.models.recording import RECORDED, model_cases, model_names

__all__ = ["RECORDED", "model_cases", "model_names"]
