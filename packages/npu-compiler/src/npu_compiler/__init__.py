"""torch.compile for NPUs: captured graphs become OpenVINO programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_command.import_hooks import homes_of, lazy_names

if TYPE_CHECKING:
    from npu_compiler.errors import (
        CompilerError,
        ExportError,
        GraphError,
        LoweringError,
        ModelInputError,
        OptionError,
        RegistryError,
    )
    from npu_compiler.explanations.explain import Explanation, explain
    from npu_compiler.exported.load import LoadedModel, load
    from npu_compiler.exported.write import export
    from npu_compiler.graph_builder import GraphBuilder, GraphTensor
    from npu_compiler.graph_compiler.records import CompileStatistics, compile_statistics
    from npu_compiler.half_precision import HalfPrecision, check_half
    from npu_compiler.lowering import custom_op, define_op, register_fx_node_converter
    from npu_compiler.nn import quantize_model
    from npu_compiler.options import CompilerConfig, SparseAttention, int4, int8
    from npu_compiler.passes.pipeline import register_pass
    from npu_compiler.quantize import compress_to_i4, quantize_tensor
    from npu_compiler.readiness import Readiness, check
    from npu_compiler.roofline import TimeBound, TimeEstimate, estimate
    from npu_compiler.torch_compile.backend import (
        compile,  # noqa: A004  # the name that users know
        refresh,
    )
    from npu_compiler.torch_compile.tune import tune
    from npu_compiler.tuning.store import TuningReport

__all__ = [
    "CompileStatistics",
    "CompilerConfig",
    "CompilerError",
    "Explanation",
    "ExportError",
    "GraphBuilder",
    "GraphError",
    "GraphTensor",
    "HalfPrecision",
    "LoadedModel",
    "LoweringError",
    "ModelInputError",
    "OptionError",
    "Readiness",
    "RegistryError",
    "SparseAttention",
    "TimeBound",
    "TimeEstimate",
    "TuningReport",
    "check",
    "check_half",
    "compile",
    "compile_statistics",
    "compress_to_i4",
    "custom_op",
    "define_op",
    "estimate",
    "explain",
    "export",
    "int4",
    "int8",
    "load",
    "quantize_model",
    "quantize_tensor",
    "refresh",
    "register_fx_node_converter",
    "register_pass",
    "tune",
]

_NAMES = {
    "errors": "CompilerError ExportError GraphError LoweringError ModelInputError OptionError "
    "RegistryError",
    "explanations.explain": "Explanation explain",
    "exported.load": "LoadedModel load",
    "exported.write": "export",
    "graph_builder": "GraphBuilder GraphTensor",
    "graph_compiler.records": "CompileStatistics compile_statistics",
    "half_precision": "HalfPrecision check_half",
    "lowering": "custom_op define_op register_fx_node_converter",
    "nn": "quantize_model",
    "options": "CompilerConfig SparseAttention int4 int8",
    "passes.pipeline": "register_pass",
    "quantize": "compress_to_i4 quantize_tensor",
    "readiness": "Readiness check",
    "roofline": "TimeBound TimeEstimate estimate",
    "torch_compile.backend": "compile refresh",
    "torch_compile.tune": "tune",
    "tuning.store": "TuningReport",
}

__getattr__ = lazy_names(__name__, homes_of(_NAMES))
