"""Patches that add npu to other libraries when they are imported."""
