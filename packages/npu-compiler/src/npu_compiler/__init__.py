"""torch.compile for NPUs: captured graphs become OpenVINO programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_command.import_hooks import lazy_names

if TYPE_CHECKING:
    from npu_compiler.errors import (
        CompilerError,
        ExportError,
        GraphError,
        LoweringError,
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
    from npu_compiler.options import CompilerConfig, SparseAttention
    from npu_compiler.quantize import compress_to_i4, quantize_tensor
    from npu_compiler.readiness import Readiness, check
    from npu_compiler.roofline import TimeBound, TimeEstimate, estimate
    from npu_compiler.torch_compile.backend import compile  # noqa: A004  # the name its users know
    from npu_compiler.torch_compile.tune import tune
    from npu_compiler.tuning import TuningReport

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
    "load",
    "quantize_model",
    "quantize_tensor",
    "register_fx_node_converter",
    "tune",
]

_HOMES = {
    "Readiness": "readiness",
    "HalfPrecision": "half_precision",
    "check": "readiness",
    "check_half": "half_precision",
    "CompileStatistics": "graph_compiler.records",
    "compile_statistics": "graph_compiler.records",
    "CompilerConfig": "options",
    "CompilerError": "errors",
    "ExportError": "errors",
    "Explanation": "explanations.explain",
    "GraphBuilder": "graph_builder",
    "GraphError": "errors",
    "GraphTensor": "graph_builder",
    "LoadedModel": "exported.load",
    "LoweringError": "errors",
    "OptionError": "errors",
    "RegistryError": "errors",
    "SparseAttention": "options",
    "compile": "torch_compile.backend",
    "compress_to_i4": "quantize",
    "custom_op": "lowering",
    "define_op": "lowering",
    "TimeBound": "roofline",
    "TimeEstimate": "roofline",
    "estimate": "roofline",
    "explain": "explanations.explain",
    "export": "exported.write",
    "load": "exported.load",
    "quantize_model": "nn",
    "quantize_tensor": "quantize",
    "register_fx_node_converter": "lowering",
    "TuningReport": "tuning",
    "tune": "torch_compile.tune",
}

__getattr__ = lazy_names(__name__, _HOMES)
