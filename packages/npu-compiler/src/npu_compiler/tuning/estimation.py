"""Estimates of a graph's time on an absent NPU, by its vendor's compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import openvino as ov

from npu_compiler.graph_compiler.records import collecting, watching_models
from npu_compiler.target_compiler import (
    Target,
    TargetCompiler,
    TargetReport,
    find_target,
    target_compiler,
)

__all__ = ["Estimator", "NoEstimateError", "estimator_for"]


class NoEstimateError(Exception):
    """A way of compiling has no estimate; the text is the reason."""


class Estimator:
    """A vendor's compiler and the target that it compiles for."""

    def __init__(self, compiler: TargetCompiler, target: Target) -> None:
        self.target = str(target)
        self.version = compiler.version
        self._compiler = compiler
        self._target = target

    def estimate_us(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Returns a call's results and the sum of its programs' estimates in microseconds.

        The programs must be lowered in this call. Estimates exclude call overhead. Raises
        NoEstimateError if a part runs on the host, or the compiler refuses a program.
        """
        reports: dict[str, TargetReport] = {}

        def judge(name: str, model: ov.Model) -> None:
            reports[name] = self._compiler.compile(model, self._target)

        with collecting() as records, watching_models(judge):
            results = call()
        record = records[-1]
        if record.eager:
            ops = ", ".join(sorted({node.op for node in record.eager}))
            raise NoEstimateError(f"{ops} would run on the host, which has no estimate")
        total_us = 0.0
        for program in record.programs:
            report = reports.get(program.name)
            if report is None:
                raise NoEstimateError(f"{program.name} consists of kernels of the host")
            if not report.is_accepted:
                raise NoEstimateError(f"the compiler refuses {program.name}: {report.reason}")
            if report.estimate is None:
                raise NoEstimateError(f"the compiler gives no estimate of {program.name}")
            total_us += report.estimate.latency_ms * 1e3
        return results, total_us


@contextlib.contextmanager
def estimator_for(target: str | None) -> Iterator[Estimator | None]:
    """Starts the compiler for a target; None without one.

    Raises [unknown-target], or TargetError if the compiler cannot be started.
    """
    if target is None:
        yield None
        return
    chosen = find_target(target)
    with target_compiler() as compiler:
        yield Estimator(compiler, chosen)
