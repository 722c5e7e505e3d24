"""Inductor's code generation for npu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.codegen import wrapper
from torch._inductor.codegen.common import register_device_op_overrides
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V

from npu_compiler.errors import CompilerError
from npu_runtime.npu import as_cpu

__all__ = ["CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen", "on_host"]


def on_host(kernel: Callable[..., Any], *args: Any) -> Any:
    """Calls a compiled loop on views of npu tensors' memory, after their pending work."""
    return kernel(
        *[
            as_cpu(arg) if isinstance(arg, torch.Tensor) and arg.device.type == "npu" else arg
            for arg in args
        ]
    )


# Device memory is host memory, so loops use the same code as on cpu. They only wait for the device
# first.

_HOST = torch.device("cpu")


class Scheduling(CppScheduling):
    """Fuses and generates loops as for cpu, because they run there."""

    def codegen_node(self, node: Any) -> None:
        """Generates the loops of fused nodes."""
        with V.graph.set_current_device(_HOST):
            super().codegen_node(node)

    def codegen_template(self, *args: Any, **named: Any) -> Any:
        """Generates a template, such as a matrix product, with its fused nodes."""
        with V.graph.set_current_device(_HOST):
            return super().codegen_template(*args, **named)

    def flush(self) -> None:
        """Finishes a kernel, and generates its call."""
        with V.graph.set_current_device(_HOST):
            super().flush()  # type: ignore[no-untyped-call]


class _CallsOnHost:
    """Mixin of wrappers, the Python code around the loops: routes each call through on_host.

    In a graph with npu tensors this includes loops over cpu tensors, which on_host passes through.
    """

    def _generate_kernel_call_helper(
        self,
        kernel_name: str,
        call_args: list[str],
        *,
        device: Any = None,
        triton: bool = True,
        **rest: Any,
    ) -> None:
        if not triton and device is not None and device.type == _HOST.type:
            call = f"on_host({', '.join([kernel_name, *call_args])})"
            self.writeline(call)  # type: ignore[attr-defined]
            return
        super()._generate_kernel_call_helper(  # type: ignore[misc]
            kernel_name, call_args, device=device, triton=triton, **rest
        )


class PythonWrapperCodegen(_CallsOnHost, wrapper.PythonWrapperCodegen):
    """The code of a whole graph."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: wrapper.PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> wrapper.PythonWrapperCodegen:
        """Makes the wrapper of a graph, or of a graph inside it."""
        if not is_subgraph:
            return PythonWrapperCodegen()  # type: ignore[no-untyped-call]
        assert subgraph_name is not None
        assert parent_wrapper is not None
        return _SubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)

    def write_header(self) -> None:
        """Adds the import of on_host to the head of the code."""
        super().write_header()
        self.imports.writeline("from npu_compiler.inductor import on_host")


class _SubgraphWrapper(_CallsOnHost, wrapper.SubgraphPythonWrapperCodegen):
    """The code of a branch or a loop's body."""


class _NotWritten(wrapper.PythonWrapperCodegen):
    """Placeholder for a kind of wrapper that Inductor looks up and npu does not implement."""

    setting: str
    supports_caching = False

    @classmethod
    def create(cls, *_args: Any, **_named: Any) -> wrapper.PythonWrapperCodegen:
        """Raises [inductor-wrapper], which names the alternatives."""
        raise CompilerError(
            f"torch._inductor: {cls.setting} must be off for graphs on npu, which are called from "
            "Python. Turn it off, or export the model with npu_compiler.export.",
            code="inductor-wrapper",
        )


class CppWrapperCodegen(_NotWritten):
    """The wrapper in C++, for cpp_wrapper and AOTInductor."""

    setting = "cpp_wrapper"


class WrapperFxCodegen(_NotWritten):
    """The wrapper as an FX graph."""

    setting = "fx_wrapper"


def _register() -> None:
    """Registers the C++ codegen with Inductor for npu's loops."""
    register_device_op_overrides("npu", CpuDeviceOpOverrides())
    # The scheduler reorders and reindexes loops for all devices but cpu, in ways that the C++
    # codegen does not support (torch 2.13: scheduler.py, "CPU reindexing is not validated yet").
    is_cpu = BaseSchedulerNode.is_cpu

    def is_written_in_cpp(self: BaseSchedulerNode) -> bool:
        device = self.get_device()
        return is_cpu(self) or (device is not None and device.type == "npu")

    BaseSchedulerNode.is_cpu = is_written_in_cpp  # type: ignore[method-assign]


_register()
