"""Compiles with an installed compiler, if any, and finds the first refused operation."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import openvino as ov

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler.compile import TargetCompiler, target_compiler, write_ir
from npu_compiler.target_compiler.report import TargetReport
from npu_compiler.target_compiler.targets import Target
from npu_compiler.target_compiler.vcl_process import Limits

__all__ = ["compile_if_installed", "find_beginning"]

_NOT_USABLE = ("target-absent", "target-compiler", "target-wine")


def compile_if_installed(
    model: ov.Model, target: Target, options: Mapping[str, str] | None = None
) -> tuple[TargetReport, None] | tuple[None, TargetError]:
    """Compiles with the first compiler, or returns an error that explains how to install one.

    A refusal has the first refused operation. Raises [target-cache] if the compiler's files cannot
    be written.
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


_SEARCH_S = 120.0
_FIRST = 8  # number of operations of the first prefix to compile
_WITHOUT_COMPUTE = ("Constant", "Parameter", "Result")


def find_beginning(
    compiler: TargetCompiler, model: ov.Model, target: Target, refused: TargetReport
) -> str:
    """Returns the last operation of the shortest prefix of a model that is refused for one reason.

    Compiles prefixes in execution order, first with doubled lengths and then by bisection. The
    compiler's cache stores the result: a friendly name, or "" if the search took longer than two
    minutes or the model has state.
    """
    with tempfile.TemporaryDirectory(prefix="npu-target-") as place:
        content = write_ir(model, Path(place) / "ir", compiler.model_format)
        key = compiler.key("beginning", target.number, content)
        found = compiler.cache.find_files(key)
        if found is not None:
            return str(found[1]["operation"])
        until_s = time.monotonic() + _SEARCH_S
        with TargetCompiler(compiler.source, cache_dir=place) as trial:

            def is_refused(count: int) -> bool | None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return None
                report = trial.compile(_beginning(model, count), target, limits=Limits(left_s))
                if time.monotonic() >= until_s:  # the process may have been ended
                    return None
                return not report.is_accepted and _words(report) == _words(refused)

            operation = _search(model, is_refused)
    if operation is None:
        return ""
    name = f"{model.get_friendly_name()}, beginning of the refusal for {target}"
    compiler.cache.store_files(key, lambda _: None, name=name, facts={"operation": operation})
    return operation


def _words(report: TargetReport) -> str:
    """Returns a reason without numbers, such as addresses and exit codes, which vary."""
    return re.sub(r"0x[0-9a-f]+|\d+", "", report.reason)


def _search(model: ov.Model, is_refused: Callable[[int], bool | None]) -> str | None:
    computing = [one for one in model.get_ordered_ops() if _computes(one)]
    if model.get_sinks() or not computing:
        return ""
    accepted, refused = 0, min(_FIRST, len(computing))
    while refused < len(computing) and not (verdict := is_refused(refused)):
        if verdict is None:
            return None
        accepted, refused = refused, min(2 * refused, len(computing))
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        verdict = is_refused(middle)
        if verdict is None:
            return None
        accepted, refused = (accepted, middle) if verdict else (middle, refused)
    return str(computing[refused - 1].get_friendly_name())


def _beginning(model: ov.Model, count: int) -> ov.Model:
    """Returns the first operations of a model, with outputs for results that later ones read."""
    copy = model.clone()
    computing = [one for one in copy.get_ordered_ops() if _computes(one)][:count]
    inside = {one.get_name() for one in computing}

    def is_read(port: ov.Output, *, within: bool) -> bool:
        readers = [reader.get_node().get_name() for reader in port.get_target_inputs()]
        return any((name in inside) == within for name in readers)

    outputs = [port for one in computing for port in one.outputs() if is_read(port, within=False)]
    inputs = [one for one in copy.get_parameters() if is_read(one.output(0), within=True)]
    return ov.Model(outputs, inputs, model.get_friendly_name())


def _computes(node: ov.Node) -> bool:
    return node.get_type_name() not in _WITHOUT_COMPUTE
