"""Compiles with the compiler that is installed, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import openvino as ov

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.compile import target_compiler
from npu_compiler.target_compiler.refused_beginning import find_beginning
from npu_compiler.target_compiler.report import TargetReport
from npu_compiler.target_compiler.targets import Target

__all__ = ["compile_if_installed"]

_NOT_USABLE = ("target-absent", "target-compiler", "target-wine")


def compile_if_installed(
    model: ov.Model, target: Target, options: Mapping[str, str] | None = None
) -> tuple[TargetReport, None] | tuple[None, TargetError]:
    """Compiles with the first compiler, or returns the error that says how to have one.

    Args:
        model: with static shapes.
        target: to compile for.
        options: further options of the compiler.

    Returns:
        The report; a refusal has the operation with which it begins.

    Raises:
        TargetError: [target-cache] the compiler's files cannot be written.
    """
    try:
        with target_compiler() as compiler:
            report = compiler.compile(model, target, options)
            if not report.is_accepted and not report.operation:
                begins = find_beginning(compiler, model, target, report)
                report = replace(report, operation=begins)
            return report, None
    except TargetError as failure:
        if failure.code not in _NOT_USABLE:
            raise
        return None, failure
