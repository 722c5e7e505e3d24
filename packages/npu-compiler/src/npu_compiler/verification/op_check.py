"""Verification of a single op's program on synthetic arguments, before its first use."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import npu_runtime
from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import LoweringError, WrongResultWarning
from npu_compiler.verification.comparison import ROUNDING, compare
from npu_compiler.verification.program_check import WORKAROUNDS
from npu_compiler.verification.reference import REFUSALS, SAMPLES, Rounding, refusal_text
from npu_compiler.verification.result import Verdict
from npu_ops.variants import OpCall, OpProgram, TensorSpec

__all__ = ["judge_op", "verified_op"]

_logger = logging.getLogger(__name__)

# Arguments of gradients that are results of the forward call. Synthetic ones contradict each other,
# and a program that recomputes one is right as well.
_SAVED = frozenset(
    {
        *("out", "output", "result", "logsumexp", "indices", "buffer"),
        *("mean", "rstd", "save_mean", "save_invstd", "save_var"),
    }
)
_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def verified_op(
    call: OpCall,
    build: Callable[[Mapping[str, str]], OpProgram],
    *,
    dtype: torch.dtype,
    key: str,
) -> OpProgram:
    """Builds the program of an op, and returns it once it is verified.

    `build` takes further options of the device's compiler. The verdict is stored under the key for
    other processes. Raises [wrong-result] if it differs despite all known workarounds.
    """
    settings = read_settings()
    path = settings.cache_dir / "ops" / f"{key}.json"
    verdict = _read(path) if settings.cache_size_bytes else None
    if verdict is not None and verdict.status != "wrong":
        return build(verdict.workaround)
    program = None
    if verdict is None:
        program = build({})
        verdict = judge_op(call, program, dtype=dtype)
        for options in WORKAROUNDS if verdict.status == "wrong" else ():
            try:
                other = build(options)
                status = judge_op(call, other, dtype=dtype).status
            except npu_runtime.ProgramError as failure:
                _logger.info("%s: does not compile with %s: %s", call, options, failure)
                continue
            if status == "right":
                verdict, program = replace(verdict, status="mended", workaround=options), other
                break
        if verdict.status in ("mended", "wrong"):
            warnings.warn(f"{call}: its program {verdict}.", WrongResultWarning, stacklevel=2)
        if settings.cache_size_bytes:
            _keep(path, verdict)
    if verdict.status == "wrong" or program is None:
        reason = f"its program {verdict}"
        raise LoweringError(
            f"Cannot lower {call}: {reason}. Let it run on the host.", "wrong-result", reason=reason
        )
    return program


def judge_op(call: OpCall, program: OpProgram, *, dtype: torch.dtype) -> Verdict:
    """Runs a program and torch on the same arguments, and compares in a dtype.

    Floating point arguments are normally distributed, others are zeros, masks are true.
    """
    arguments = _made_up(call)
    if arguments is None:
        return Verdict("unchecked", "its arguments hold results of another call")
    precision = str(dtype).removeprefix("torch.")
    try:
        with torch.no_grad():
            expected = _flat(call.invoke(arguments))
            found = _run(call, program, arguments)
    except REFUSALS as failure:
        if isinstance(failure, npu_runtime.NpuError):
            raise
        return Verdict("unchecked", refusal_text(failure))
    served = [index for index, output in enumerate(program.results) if output >= 0]

    def noisy() -> Iterator[list[Any]]:
        for seed in range(SAMPLES):
            rounding = Rounding(ROUNDING[precision], seed)
            with torch.no_grad():
                results = _flat(call.invoke([rounding(value) for value in arguments]))
            yield [rounding(results[index]) for index in served]

    difference = compare(
        [found[program.results[index]] for index in served],
        [expected[index] for index in served],
        precision=precision,
        noisy=noisy,
    )
    return Verdict("right") if difference is None else Verdict("wrong", str(difference))


def _made_up(call: OpCall) -> list[Any] | None:
    generator = torch.Generator().manual_seed(0)
    values = [
        _tensor(value, generator) if isinstance(value, TensorSpec) else value
        for value in call.arguments
    ]
    names = [argument.name for argument in call.overload()._schema.arguments]
    saved = [
        name
        for name, value in zip(names, call.arguments, strict=True)
        if name in _SAVED and isinstance(value, TensorSpec)
    ]
    if "backward" not in call.op or not saved:
        return values
    if call.op != f"{_FLASH}_backward":
        return None
    by_name = dict(zip(names, values, strict=True))
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    shared = ("query", "key", "value", "dropout_p", "is_causal")
    options = {name: by_name[name] for name in ("attn_mask", "scale")}
    out, logsumexp = forward(*(by_name[name] for name in shared), **options)
    by_name["out"].copy_(out)
    by_name["logsumexp"].copy_(logsumexp)
    return values


def _tensor(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    made = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
    if spec.dtype is torch.bool:
        return made.fill_(True)
    if not spec.dtype.is_floating_point:
        return made.zero_()
    return made.normal_(generator=generator)


def _run(call: OpCall, program: OpProgram, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The program's outputs in the order of their ports, with the results' axes."""
    bound = []
    for position in program.inputs:
        tensor, order = arguments[position], call.arguments[position].order
        bound.append(tensor.permute(order) if order else tensor)
    outputs = program.program._run(bound, None, torch.device("cpu"))
    return [
        output.permute(order) if order else output
        for output, order in zip(outputs, program.output_orders, strict=True)
    ]


def _read(path: Path) -> Verdict | None:
    try:
        return Verdict.from_json(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def _keep(path: Path, verdict: Verdict) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, verdict.as_json())
    except OSError as failure:
        _logger.debug("cannot keep the verdict on an op in %s (%s)", path, failure)


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]
