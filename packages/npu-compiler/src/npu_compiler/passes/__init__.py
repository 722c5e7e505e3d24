"""Rewrites of captured graphs; npu_compiler.passes.pipeline lists them in order."""

from npu_compiler.passes.infra.pass_base import Facts, GraphPass
from npu_compiler.passes.infra.pattern import (
    FusePattern,
    Match,
    Replacement,
    anything,
    call,
    either,
    number,
    optional,
)

__all__ = [
    "Facts",
    "FusePattern",
    "GraphPass",
    "Match",
    "Replacement",
    "anything",
    "call",
    "either",
    "number",
    "optional",
]
