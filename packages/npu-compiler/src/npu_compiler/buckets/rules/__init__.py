"""Bucketing rules per op: propagation of padding, one file per family of ops."""

from typing import Any

from npu_compiler.buckets.call import Rule, find_rule
from npu_compiler.buckets.rules import elementwise, reductions, views

__all__ = ["elementwise", "reductions", "rule_of", "views"]


def rule_of(target: Any) -> Rule | None:
    """Returns the rule of an op, or None if it has none."""
    return find_rule(target, elementwise.POINTWISE)
