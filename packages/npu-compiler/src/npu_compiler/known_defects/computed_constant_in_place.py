"""Values of constant expressions that the CPU plugin overwrites in place.

OpenVINO folds constant expressions before it compiles, but lacks some operations and types. The
CPU plugin computes these at the first run of a request and keeps the results. It lets later
operations write their results to the same memory, so that the next run reads wrong values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer

__all__ = ["DEFECT"]

# Operations of programs that ConstantFolding of 2026.4.1 does not fold, at least in half precision.
_LEFT = frozenset(
    {
        *("AdaptiveAvgPool", "AvgPool", "BatchNormInference", "BitwiseAnd", "BitwiseNot"),
        *("BitwiseOr", "BitwiseXor", "Convolution", "ConvolutionBackpropData", "CumSum", "DFT"),
        *("Elu", "GatherElements", "GatherND", "GroupConvolution", "GroupConvolutionBackpropData"),
        *("IDFT", "IRDFT", "LogSoftmax", "Mod", "MVN", "NormalizeL2", "RDFT", "ReverseSequence"),
        *("Roll", "ScaledDotProductAttention", "SliceScatter"),
    }
)
# Their results vary even if all inputs are constant.
_VARYING = frozenset(
    {"Assign", "If", "Loop", "Multinomial", "RandomUniform", "ReadValue", "TensorIterator"}
)


def _avoid(model: ov.Model) -> int:
    """Replaces these values with constants."""
    found = [output for node in _of_constants(model) for output in node.outputs()]
    found = [output for output in found if output.get_target_inputs()]
    if not found:
        return 0
    from npu_compiler.openvino_core import openvino_core  # late: needs openvino

    readers = [list(output.get_target_inputs()) for output in found]
    is_narrow = [output.get_element_type() in (ov.Type.bf16, ov.Type.f16) for output in found]
    results = [
        ops.convert(output, "f32").output(0) if narrow else output
        for output, narrow in zip(found, is_narrow, strict=True)
    ]
    plain = {"INFERENCE_PRECISION_HINT": "f32"}
    values = openvino_core().compile_model(ov.Model(results, []), "CPU", plain)([])
    for index, output in enumerate(found):
        known = ops.constant(np.array(values[index]), output.get_element_type())
        for reader in readers[index]:
            reader.replace_source_output(known.output(0))
    return len(found)


def _of_constants(model: ov.Model) -> list[Any]:
    """Returns the operations of these kinds with constant inputs only."""
    known: set[int] = set()
    found = []
    for node in model.get_ordered_ops():
        sources = [value.get_node().get_instance_id() for value in node.input_values()]
        kind = node.get_type_name()
        if kind == "Constant" or (
            sources and kind not in _VARYING and all(source in known for source in sources)
        ):
            known.add(node.get_instance_id())
            if kind in _LEFT:
                found.append(node)
    return found


def _reproducer() -> Reproducer:
    given = ops.parameter([4, 4], np.float32)
    values = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    known = ops.elu(ops.constant(values), 1.0)
    total = ops.add(known, ops.matmul(given, given, False, False))
    ones = np.ones((4, 4), np.float32)
    expected = np.where(values > 0, values, np.expm1(values)) + 4
    return Reproducer(ov.Model([total], [given]), [ones], expected, before=[[ones]])


DEFECT = KnownDefect(
    name="computed-constant-in-place",
    summary="The value of a constant expression is overwritten by a later result.",
    condition="an operation of constants that ConstantFolding leaves alone (Elu, LogSoftmax, MVN "
    "in half precision and others), read by a sum that is fused to a product or by an elementwise "
    "operation; right at the first run of a request",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] Results of constant subgraphs are overwritten in place after the first inference

Add(Elu(Constant), MatMul(x, x)) is right at the first infer() of a request and off by the product
at each later one, where the sum is fused to MatMul; so is Multiply(MVN(Constant of bf16), x). Nodes
that depend on constants alone are executed once (ConstantFolding has no evaluator for them), and
their memory is then shared in place with the output of a node that runs each time. Expected: no
in-place sharing with the output of a node that is executed once.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
