"""Runs kernel programs: on a step's tokens with a KV cache, or on tensors of a compiled graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.kernel_programs.native import is_torch_loaded, native
from npu_ops.kernel_programs.packed import PackedLinear
from npu_ops.kernel_programs.program import Keep, KernelProgram, Linear, Rows
from npu_ops.kernel_programs.sparse_attention import SparseAttention, why_not_sparse
from npu_ops.kernel_programs.threads import ThreadCount
from npu_runtime import layer_recording, observe

if TYPE_CHECKING:
    import torch

    from npu_ops import _C

__all__ = [
    "CacheKind",
    "Execution",
    "StageLayers",
    "TensorExecution",
    "kernel_sets",
    "native_program",
    "translated",
]


# Traces write arrays as "f32[35,576]".
_WEIGHT_KINDS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "i8", "int4": "u4"}
_LEVEL_BITS = {"q2": 2, "q3": 3, "q4": 4, "q5": 5, "q6": 6, "q8": 8}  # 4 for others
_SHORT_DTYPES = {"float32": "f32", "float16": "f16", "uint8": "u8"}


class StageLayers:
    """The stages of a program, each of which is one layer.

    Attributes:
        names: name of each stage: its instructions and module.
    """

    def __init__(
        self,
        program: KernelProgram,
        stages: Sequence[tuple[int, int]],
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        kernel_set: str,
    ) -> None:
        """Describes the stages.

        Args:
            program: the program.
            stages: the first and the last instruction of each stage.
            weights: the program's weights, by name.
            kernel_set: instruction set of the kernels.
        """
        instructions = program.instructions
        modules = program.modules or ("",) * len(instructions)
        keep = next((at for at, one in enumerate(instructions) if isinstance(one, Keep)), None)
        self._stages = []
        for first, last in stages:
            inner = instructions[first : last + 1]
            kinds = [type(one).__name__ for one in inner]
            products = [one for one in inner if isinstance(one, Linear)]
            packed = [weights[one.weight] for one in products]
            is_known = len(products) == len(inner)
            self._stages.append(
                _Stage(
                    name=f"{'+'.join(kinds)} {modules[first]}".strip(),
                    kind="Linear" if is_known else "+".join(kinds),
                    module=modules[first],
                    kernels=f"{kernel_set}_{_kind(packed[0])}" if is_known else kernel_set,
                    weights=" ".join(map(_arrays, packed)) if is_known else "",
                    width=products[0].input.width if is_known else 0,
                    results=tuple(one.out.width for one in products),
                    is_kept=keep is not None and first > keep,
                )
            )
        self.names = [stage.name for stage in self._stages]

    def emit(
        self,
        times_ns: Sequence[int],
        start_ns: int,
        work_ns: Sequence[Sequence[int]] = (),
        /,
        *,
        rows: int,
        kept: int,
        **place: int,
    ) -> None:
        """Emits the spans of a run's layers, which ran in sequence, and of the threads' work.

        Args:
            times_ns: nanoseconds of each stage.
            start_ns: start of the first stage.
            work_ns: for each worker, its nanoseconds of work in each stage; it waited in the rest.
            rows: number of rows of the run.
            kept: number of rows after the program's Keep.
            place: device and stream.
        """
        threads = [threading.get_native_id(), *native().worker_threads()]
        for index, (stage, duration_ns) in enumerate(zip(self._stages, times_ns, strict=True)):
            if stage.weights:
                count = kept if stage.is_kept else rows
                outputs = " ".join(f"f32[{count},{width}]" for width in stage.results)
                inputs = f"f32[{count},{stage.width}] {stage.weights}"
                arrays = {"inputs": inputs, "outputs": outputs}
                observe.span_between("layer_shapes", stage.name, start_ns, start_ns, **arrays)
            how = {"type": stage.kind, "implementation": stage.kernels, "module": stage.module}
            end_ns = start_ns + duration_ns
            observe.span_between("layer", stage.name, start_ns, end_ns, **place, **how)
            for thread, of_worker in zip(threads, work_ns, strict=False):
                work = min(of_worker[index], duration_ns)
                if thread and work:
                    wait_us = (duration_ns - work) / 1e3
                    observe.span_of_thread(
                        thread, "worker", stage.name, start_ns, start_ns + work, wait_us=wait_us
                    )
            start_ns = end_ns


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One stage; for products, also their weights as arrays, and the width of rows."""

    name: str
    kind: str
    module: str
    kernels: str
    weights: str
    width: int
    results: tuple[int, ...]
    is_kept: bool


def _kind(weight: PackedLinear | torch.Tensor) -> str:
    if not isinstance(weight, PackedLinear):
        return _SHORT_DTYPES[_dtype_name(weight)]
    # Block formats are multiplied by 8-bit inputs.
    return _WEIGHT_KINDS.get(weight.kind, f"{weight.kind}_i8")


def _dtype_name(array: torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def _arrays(weight: PackedLinear | torch.Tensor) -> str:
    """Returns a weight as arrays: elements, then scales and zeros, each in one dimension."""
    if not isinstance(weight, PackedLinear):
        return f"{_kind(weight)}[{','.join(map(str, weight.shape))}]"
    if weight.kind == "mixed":
        return " ".join(map(_arrays, weight.parts))
    if weight.kind not in _WEIGHT_KINDS:
        bits = _LEVEL_BITS.get(weight.kind[:2], 4)
        rest = weight.nbytes - weight.outputs * weight.inputs * bits // 8
        return f"u{bits}[{weight.outputs},{weight.inputs}] u8[{rest}]"
    beside = [part for part in (weight.scales, weight.zeros) if part is not None]
    parts = [
        f"{_SHORT_DTYPES[_dtype_name(part)]}[{part.nbytes // part.dtype.itemsize}]"
        for part in beside
    ]
    return " ".join([f"{_kind(weight)}[{weight.outputs},{weight.inputs}]", *parts])


CacheKind = Literal["float32", "bfloat16", "u8"]


def kernel_sets() -> list[str]:
    """Returns the kernels' instruction sets that this processor supports, best first."""
    return list(native().kernel_sets())


class Execution:
    """A loaded program with its KV-cache blocks.

    A step uses all processors available to the process, at most torch.get_num_threads() threads, or
    OMP_NUM_THREADS without torch. Concurrent steps of several Python threads run one after the
    other.

    Attributes:
        program: the program.
        block_bytes: size of a block in bytes.
    """

    def __init__(
        self,
        program: KernelProgram,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        cache: CacheKind,
        name: str = "kernels",
        kernel_set: str | None = None,
        sparse_attention: SparseAttention | None = None,
    ) -> None:
        """Loads a program.

        Args:
            program: the program to run.
            weights: the program's weights, by name, which are not copied.
            cache: dtype of keys and values.
            name: name of its spans.
            kernel_set: one of kernel_sets; None for the best.
            sparse_attention: selection of keys in steps with one token per sequence; None for all.

        Raises:
            OperatorInputError: [kernel-program] if program, weights and options do not fit
                together, [sparse-attention] if that would break the program's attention.
        """
        broken = None if sparse_attention is None else why_not_sparse(program)
        if broken is not None:
            raise OperatorInputError(
                f"`sparse_attention` must be omitted for a program that {broken}, got "
                f"{sparse_attention}. Omit it for dense attention.",
                code="sparse-attention",
            )
        self.program = program
        self._name = name
        self._kernel_set = kernel_set or kernel_sets()[0]
        self._takes_tensors = is_torch_loaded()
        self._native = native_program(
            program, weights, cache=cache, kernel_set=kernel_set, sparse_attention=sparse_attention
        )
        self._layers = StageLayers(
            program, self._native.stages, weights, kernel_set=self._kernel_set
        )
        self.block_bytes: int = self._native.block_bytes
        self._threads = ThreadCount()

    def step(self, rows: Rows) -> Any:
        """Runs a step: appends keys and values of all rows, and computes the requested logits.

        Args:
            rows: the tokens.

        Returns:
            logits (kept, vocabulary) float32: a tensor, or a numpy array if the tokens are one.

        Raises:
            OperatorInputError: [kernel-program] for an index out of range, or a wrong dtype or
                shape; the step then did not run.
            OpsError: [out-of-memory] if the machine has no memory left; later steps may succeed.
        """
        if observe.is_enabled():
            return self._observed(rows)
        return self._run(rows)

    def timed_step(self, rows: Rows) -> tuple[Any, list[tuple[str, int]]]:
        """Runs a step; returns logits, and the instructions and nanoseconds of each stage.

        Raises:
            OperatorInputError, OpsError: as in `step`.
        """
        logits, times = self._timed(rows)
        return logits, list(zip(self._layers.names, times[0].tolist(), strict=True))

    def _count(self, rows: Rows) -> int:
        """Returns the number of threads for a step of these rows."""
        return self._threads.of_step() if rows.is_decode else self._threads.of_prompt()

    def _timed(self, rows: Rows) -> tuple[Any, np.ndarray[Any, Any]]:
        """Runs a step; returns logits, and the nanoseconds of stages, and of each worker's work."""
        count = self._count(rows)
        times = np.zeros((1 + count, len(self._layers.names)), np.int64)
        return self._step(rows, count, times), times

    def _step(self, rows: Rows, count: int, times: np.ndarray[Any, Any] | None) -> Any:
        """Runs a step with a number of threads; its logits have the array type of the tokens."""
        given: list[Any] = [
            rows.tokens, rows.positions, rows.sequences, rows.slots, rows.block_tables, rows.kept,
            times,
        ]  # fmt: skip
        are_arrays = isinstance(rows.tokens, np.ndarray)
        if self._takes_tensors:
            from torch import from_numpy

            given = [from_numpy(one) if isinstance(one, np.ndarray) else one for one in given]
        tokens, positions, sequences, slots, tables, kept, timed = given
        with translated():
            logits: Any = self._native.step(
                tokens, positions, sequences, slots, tables, kept, count, timed, rows.is_decode
            )
        return logits.numpy() if self._takes_tensors and are_arrays else logits

    def reserve(self, blocks: int) -> None:
        """Allocates the blocks 0 to blocks - 1; existing blocks keep their contents.

        Raises:
            MemoryError: if the machine has no memory left.
        """
        self._native.reserve(blocks)

    def copy_block(self, source: int, target: int) -> None:
        """Copies one block: keys and values of all layers.

        Raises:
            OperatorInputError: [kernel-program] for a block that was not reserved.
        """
        with translated():
            self._native.copy_block(source, target)

    def read_blocks(self, ids: Sequence[int]) -> torch.Tensor:
        """Returns copies of blocks: (len(ids), block_bytes) uint8; raises as copy_block does."""
        with translated():
            content: torch.Tensor = self._native.read_blocks(list(ids))
        return content

    def write_blocks(self, ids: Sequence[int], content: torch.Tensor) -> None:
        """Writes the result of read_blocks; raises as copy_block does."""
        with translated():
            self._native.write_blocks(list(ids), content.contiguous())

    def _observed(self, rows: Rows) -> Any:
        """Runs a step, and emits the spans of the program and, if requested, of its layers."""
        start_ns = time.time_ns()
        place = {"device_index": 0, "stream": 0}
        if not layer_recording.is_wanted():
            with observe.span("program", self._name, **place):
                return self._run(rows)
        logits, times = self._timed(rows)
        observe.span_between("program", self._name, start_ns, time.time_ns(), **place)
        of_stages, *of_workers = times.tolist()
        self._layers.emit(
            of_stages, start_ns, of_workers,
            rows=len(rows.tokens), kept=len(rows.kept), **place,
        )  # fmt: skip
        return logits

    def _run(self, rows: Rows) -> Any:
        count = self._count(rows)
        began = time.perf_counter()
        logits = self._step(rows, count, None)
        if rows.is_decode:
            self._threads.note(count, time.perf_counter() - began)
        return logits


def native_program(
    program: KernelProgram,
    weights: Mapping[str, PackedLinear | torch.Tensor],
    *,
    cache: CacheKind = "float32",
    kernel_set: str | None = None,
    sparse_attention: SparseAttention | None = None,
) -> _C.KernelProgram:
    """Returns the native program; see Execution for arguments and errors."""
    content = program.as_dict()
    with translated():
        made: _C.KernelProgram = native().KernelProgram(
            content["instructions"],
            content["widths"],
            content["layers"],
            content["logits"],
            dict(weights),
            cache,
            kernel_set,
            0 if sparse_attention is None else sparse_attention.blocks,
            0 if sparse_attention is None else sparse_attention.dense_up_to,
        )
    return made


@contextmanager
def translated() -> Iterator[None]:
    """Converts exceptions of native code to this package's errors."""
    try:
        yield
    except MemoryError as failure:
        raise OpsError(
            "kernel program: the machine must have memory left for the step, got none. Run fewer "
            "rows per step, or free memory.",
            code="out-of-memory",
        ) from failure
    except (ValueError, RuntimeError, KeyError) as failure:
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise OperatorInputError(
            f"kernel program: {lines[0].rstrip('.')}. Pass inputs of the program's shapes.",
            code="kernel-program",
        ) from failure


class TensorExecution:
    """A loaded program on tensors: it loads and stores its rows.

    Concurrent calls of several Python threads run one after the other.

    Attributes:
        program: the program.
    """

    def __init__(
        self,
        program: KernelProgram,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        rows: int,
        arguments: Sequence[tuple[int, Sequence[int]]],
        results: Sequence[Sequence[int]],
        device: str = "cpu",
        is_alone: bool = False,
        name: str = "kernels",
        kernel_set: str | None = None,
    ) -> None:
        """Loads a program.

        Args:
            program: the program to run.
            weights: the program's weights, by name, which are not copied.
            rows: number of rows of the tensors; the other dimensions are flattened.
            arguments: for each loaded tensor, its index among the inputs of a call, and its shape.
            results: the shape of each stored tensor.
            device: device of the results, "cpu" or "npu".
            is_alone: whether only the calling thread runs it; otherwise all threads of the process.
            name: name of its spans.
            kernel_set: one of npu_ops.kernel_programs.execution.kernel_sets; None for the best.

        Raises:
            OperatorInputError: [kernel-program] if something does not fit together.
        """
        self.program = program
        self._name = name
        self._kernel_set = kernel_set or kernel_sets()[0]
        self._program = native_program(program, weights, kernel_set=kernel_set)
        self._rows = rows
        self._layers = StageLayers(
            program, self._program.stages, weights, kernel_set=self._kernel_set
        )
        with translated():
            self._native = native().TensorCall(
                self._program,
                rows,
                [position for position, _ in arguments],
                [list(shape) for _, shape in arguments],
                [list(shape) for shape in results],
                device,
                is_alone,
            )

    def run(self, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Runs the program.

        Args:
            inputs: inputs of the call; the loaded ones are float32, of any strides, on npu or cpu.

        Returns:
            New contiguous tensors; None without a run during graph capture, which cannot contain
            host code.

        Raises:
            OperatorInputError: [kernel-program] for a wrong dtype or shape.
            OpsError: [out-of-memory] if the machine has no memory left.
        """
        if observe.is_enabled():
            return self._observed(inputs)
        return self._run(inputs, None)

    def shortcut(
        self, is_current: Callable[[tuple[Any, ...]], bool] | None
    ) -> Callable[[tuple[Any, ...]], list[torch.Tensor] | None]:
        """Returns a native version of `run`, without Python code.

        It also returns None without a run while the runtime's events have a listener, or if
        `is_current` returns False. It raises MemoryError or ValueError.

        Args:
            is_current: called with the inputs before each run; may be None.
        """
        return partial(self._native.run_current, is_current)

    def _run(
        self, inputs: tuple[Any, ...], times: torch.Tensor | None
    ) -> list[torch.Tensor] | None:
        try:
            found: list[torch.Tensor] | None = self._native.run(inputs, times)
            return found
        except (MemoryError, ValueError):
            with translated():
                raise

    def _observed(self, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Runs the program, and emits its span and, if requested, those of its layers."""
        start_ns = time.time_ns()
        place = {"device_index": 0, "stream": 0}
        if not layer_recording.is_wanted():
            with observe.span("program", self._name, **place):
                return self._run(inputs, None)
        import torch

        times = torch.zeros(len(self._layers.names), dtype=torch.int64)
        found = self._run(inputs, times)
        if found is not None:
            observe.span_between("program", self._name, start_ns, time.time_ns(), **place)
            rows = self._rows
            self._layers.emit(times.tolist(), start_ns, rows=rows, kept=rows, **place)
        return found
