"""The cache of compiled graphs: later processes find programs in it without lowering."""

from __future__ import annotations

import hashlib
import json
import logging
import operator
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
import torch._functorch.config as functorch_config
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_command.interpreter import switching_often
from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import IndexRangeError
from npu_compiler.graph.origins import source_names
from npu_compiler.graph_compiler.records import (
    GraphRecord,
    next_graph_name,
    publish,
    recalled_record,
)
from npu_compiler.graph_compiler.targets import ProgramContent
from npu_compiler.options import CompilerConfig
from npu_compiler.plugins import has_plugins
from npu_compiler.programs import ProgramCache, compile_options, content_key
from npu_compiler.programs.cache import find_kernels, kernel_options
from npu_compiler.programs.execution import KernelCall, ProgramCall, run_shortcut
from npu_compiler.programs.index_checks import NARROW, check_indices
from npu_compiler.tuning.run import current_run
from npu_compiler.verification.input_classes import InputClasses
from npu_compiler.verification.result import Verdict
from npu_runtime import FrozenTensors, ProgramError, layer_recording, observe
from npu_runtime.npu import current_device, is_current_stream_capturing, set_device
from npu_runtime.npu.graphs import outside_capture

if TYPE_CHECKING:
    from npu_compiler.graph_compiler.assembly import Assembled

__all__ = ["GraphMemory", "GraphStore", "RecalledGraph", "graph_identity"]

_logger = logging.getLogger(__name__)
# Raised by reading a record that another version or program wrote.
_OTHER_FORM = (KeyError, TypeError, ValueError, IndexError)

_MOST = 2000


class GraphStore:
    """The records in a directory, which processes may share."""

    def __init__(
        self, cache_dir: str | os.PathLike[str] | None = None, *, most: int = _MOST
    ) -> None:
        """Sets the directory, `graphs` in that for caches; above `most` records, evicts half."""
        self.directory = Path(cache_dir or read_settings().cache_dir) / "graphs"
        self._most = most

    def read(self, key: str) -> dict[str, Any] | None:
        """Returns the record of a key, or None; a damaged one is logged and ignored."""
        path = self.directory / f"{key}.json"
        try:
            content = json.loads(path.read_text())
            record = content["record"]
            if not isinstance(record, dict) or content["sha256"] != _checksum(record):
                raise ValueError("it does not match its checksum")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as failure:
            _logger.warning("graph store: record %s cannot be used (%s)", path, failure)
            return None
        return record

    def write(self, key: str, record: Mapping[str, Any]) -> None:
        """Stores a JSON-like record; logs a warning if the directory cannot be written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            content = {"sha256": _checksum(record), "record": dict(record)}
            write_json(self.directory / f"{key}.json", content)
            self._trim()
        except OSError as failure:
            _logger.warning("graph store: cannot write in %s (%s)", self.directory, failure)

    def clear(self) -> None:
        """Removes all records."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _trim(self) -> None:
        files = [*self.directory.glob("*")]
        if len(files) > self._most:
            files.sort(key=_age)
            for path in files[: len(files) - self._most // 2]:
                path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # another process removes it


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


# npu_compiler.graph_compiler.targets distinguishes weights, because their bytes belong to the
# program.

# Ops of other namespaces may decompose by Python code that is not in the key.
_NAMESPACES = ("aten", "prims", "npu")
_PLAIN = (
    bool, int, float, complex, str, type(None), EllipsisType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
# Options that only affect the storage of programs, or that act before the backend is called.
_NO_CONTENT = ("cache_dir", "use_to", "dynamic")


class _Unknown(Exception):
    """Something in the graph has no complete text form."""


def graph_identity(
    graph_module: fx.GraphModule, inputs: Sequence[Any], config: CompilerConfig
) -> dict[str, Any] | None:
    """Returns all that determines a graph's compilation but the weights' values, JSON-like.

    None for graphs without a complete text form: those with dynamic sizes, inner tensors, tensor
    subclasses, foreign functions and ops, or modes that intercept each call.
    """
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None
    try:
        lines = [*_lines(graph_module.graph, inputs)]
    except _Unknown:
        return None
    options = {
        field.name: repr(getattr(config, field.name))
        for field in fields(config)
        if field.name not in _NO_CONTENT
    }
    return {"graph": lines, "options": options, "state": _state()}


def _state() -> list[str]:
    """Returns torch's global state that affects tracing."""
    facts = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "npu")
        ],
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_flash_sdp_enabled(),
        sorted(
            (key, repr(value)) for key, value in functorch_config.save_config_portable().items()
        ),
    )
    return [repr(fact) for fact in facts]


def _lines(graph: fx.Graph, inputs: Sequence[Any]) -> Iterator[str]:
    names: dict[fx.Node, str] = {}
    values = iter(inputs)
    for node in graph.nodes:
        names[node] = f"%{len(names)}"
        if node.op == "placeholder":
            yield _input(node, next(values, None))
            continue
        if node.op == "output":
            called = "return"
        elif node.op == "call_method":
            called = f".{node.target}"
        elif node.op == "call_function":
            called = _function(node.target)
        else:
            raise _Unknown  # a tensor or a module inside the graph
        yield f"{called}({_text(node.args, names)}, {_text(node.kwargs, names)})"
    if next(values, None) is not None:
        raise _Unknown


def _input(node: fx.Node, value: Any) -> str:
    traced = node.meta.get("example_value")
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not isinstance(
        traced, torch.Tensor
    ):
        raise _Unknown
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        raise _Unknown
    if not all(type(size) is int for size in (*traced.shape, *traced.stride())):
        raise _Unknown
    facts = (
        value.dtype,
        tuple(value.shape),
        value.stride(),
        value.storage_offset(),
        str(value.device),
        value.requires_grad,
        value.is_leaf,
        value.is_inference(),
        type(value).__name__,
        # dynamo's mark for parameters and buffers.
        repr((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")),
    )
    return f"input {facts!r}"


def _function(target: Any) -> str:
    """Returns the name of a function, if the name resolves to it and not to a replacement."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            raise _Unknown
        return f"op {target}"
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return f"operator.{name}"
    for home in (torch, torch._C._nn, torch.nn.functional, torch._C, torch.special):
        is_own = getattr(target, "__module__", None) in (None, home.__name__, "torch.functional")
        if is_own and getattr(home, name, None) is target:
            return f"{home.__name__}.{name}"
    raise _Unknown


def _text(value: Any, names: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, slice):
        return f"slice({_text((value.start, value.stop, value.step), names)})"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(item, names) for item in value)
        return f"{'list' if isinstance(value, list) else 'tuple'}({inside})"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise _Unknown
        return "{" + ", ".join(f"{key!r}: {_text(one, names)}" for key, one in value.items()) + "}"
    if type(value) not in _PLAIN:
        raise _Unknown
    return repr(value)


class RecalledGraph:
    """One program that computes a whole graph, as long as its weights are unchanged."""

    def __init__(
        self,
        call: Future[ProgramCall | None] | KernelCall,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        frozen: FrozenTensors | None,
        trace: Callable[[Sequence[Any]], Callable[..., Any]],
        classes: InputClasses | None,
    ) -> None:
        """Takes a kernel program, or the result of _loaded_ahead.

        The program takes the graph's inputs at these positions; its weights are `frozen`; `outputs`
        are the positions of the graph's results; `trace` compiles in full, also for inputs of new
        `classes`.
        """
        self._is_host_code = isinstance(call, KernelCall)
        self._shortcut: Callable[[tuple[Any, ...]], Any] | None = None
        if isinstance(call, KernelCall):
            self._run = call.direct(inputs, outputs)
            is_current = None if frozen is None else frozen.is_current
            self._shortcut = call.shortcut(inputs, outputs, is_current)
        else:
            self._run = self._first_run(call, inputs, outputs)
        self._frozen = frozen
        self._trace = trace
        self._classes = classes
        self._traced: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        """Runs the graph; compiles it in full once a weight differs or an integer is too large."""
        classes = self._classes
        if classes is not None:
            classes.left -= 1
            if classes.left < 0 and not is_current_stream_capturing():
                return self._looked_at(classes, inputs)
        return self._called(inputs)

    def _looked_at(self, classes: InputClasses, inputs: tuple[Any, ...]) -> Any:
        """Runs the graph; compiles it in full if its inputs are of a new class."""
        started = time.perf_counter()
        if classes.is_due(inputs):
            return self._full(inputs)(*inputs)
        looked = time.perf_counter()
        results = self._called(inputs)
        classes.spent(look_s=looked - started, run_s=time.perf_counter() - looked)
        return results

    def _called(self, inputs: tuple[Any, ...]) -> Any:
        shortcut = self._shortcut
        if shortcut is not None:
            results = run_shortcut(shortcut, inputs)
            if results is not None:
                return results
        if self._is_usable(inputs):
            try:
                return self._run(*inputs)
            except IndexRangeError as error:
                if NARROW not in str(error):
                    raise
        return self._full(inputs)(*inputs)

    def _first_run(
        self, loading: Future[ProgramCall | None], inputs: Sequence[int], outputs: Sequence[int]
    ) -> Callable[..., Any]:
        """Returns a function that waits for the program, and compiles in full if there is none."""

        def run(*arguments: Any) -> Any:
            call = loading.result()
            if call is None:
                return self._full(arguments)(*arguments)
            self._run = call.direct(inputs, outputs)
            return self._run(*arguments)

        return run

    def _is_usable(self, inputs: Sequence[Any]) -> bool:
        if self._traced is not None or (self._is_host_code and is_current_stream_capturing()):
            return False
        return self._frozen is None or self._frozen.is_current(inputs)

    def _full(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        with self._lock:
            if self._traced is None:
                # No ShapeEnv, because the sizes are fixed and dynamo guards them.
                with outside_capture(), tracing(TracingContext(FakeTensorMode())):
                    self._traced = torch.compiler.disable(self._trace(inputs))  # type: ignore[no-untyped-call]
                self._frozen = self._shortcut = self._classes = None
            return self._traced


# A graph is kept only if AOTAutograd changed nothing about the call: no input is written to, no
# result is a view of an input or of another result, and one program computes all results.
# Everything else is compiled in full in each process.


class GraphMemory:
    """The cache entry of one graph from dynamo: loaded, or stored after compilation."""

    def __init__(
        self, graph_module: fx.GraphModule, inputs: Sequence[Any], config: CompilerConfig
    ) -> None:
        """Takes the identity of a graph; see graph_identity for the arguments."""
        self._inputs = tuple(inputs)
        self._names = source_names(graph_module)
        self._config = config
        self._store = GraphStore(config.cache_dir)
        self._tuning: tuple[str, str | None] = ("", None)
        self._is_plain = False
        self._key: str | None = None
        settings = read_settings()
        with observe.span("compile", "identity"):
            identity = graph_identity(graph_module, inputs, config)
        # Whether this module can name all calls and inputs of the graph.
        self.is_named = identity is not None
        is_kept = settings.cache_size_bytes and settings.debug_dir is None
        if is_kept and identity is not None and current_run() is None:
            self._key = content_key({"dynamo": identity})

    def recall(
        self,
        trace: Callable[[Sequence[Any]], Callable[..., Any]],
        *,
        is_tuned: bool = False,
    ) -> RecalledGraph | None:
        """Returns the graph with its program, if an earlier process left both.

        `trace` compiles in full, if a weight has changed since. With `is_tuned`, only a graph with
        a tuning record is returned.
        """
        # Its calls are not traced, so the source lines of its layers would be unknown.
        if self._key is None or layer_recording.is_wanted() or self._config.verify == "always":
            return None
        record = self._store.read(self._key)
        if record is None:
            return None
        with observe.span("compile", "recall"):
            try:
                if is_tuned and record["tuning"][1] is None:
                    return None
                return self._recalled(record, trace)
            except _OTHER_FORM as failure:
                _logger.warning(
                    "graph store: record %s is of another form (%s)", self._key, failure
                )
                return None

    def _recalled(
        self, record: Mapping[str, Any], trace: Callable[[Sequence[Any]], Callable[..., Any]]
    ) -> RecalledGraph | None:
        content = ProgramContent(**_tuples(record["content"]))
        key, name = record["tuning"]
        if _tuned_name(key, self._config) != name or _foreign_ops() & set(content.ops):
            return None
        weights = {name: self._inputs[position] for name, position in record["weights"].items()}
        if any(weight.is_inference() for weight in weights.values()):
            return None
        told = recalled_record(record["graph"], name=next_graph_name())
        positions = [*record["weights"].values()]
        names = [self._names[position] for position in positions]
        watch = FrozenTensors if self._config.check_weights else FrozenTensors.unwatched
        # Before any of them is read.
        frozen = watch(positions, [*weights.values()], names) if weights else None
        find = self._kernels if told.programs[0].target == "kernels" else self._program
        call = find(record, told, content, weights)
        if call is None:
            return None
        return RecalledGraph(
            call,
            inputs=record["inputs"],
            outputs=record["outputs"],
            frozen=frozen,
            trace=trace,
            classes=self._input_classes(positions),
        )

    def _input_classes(self, frozen: Sequence[int]) -> InputClasses | None:
        if self._config.verify != "first" or self._config.compression is not None:
            return None
        return InputClasses(
            {place: value for place, value in enumerate(self._inputs) if place not in frozen}
        )

    def _program(
        self,
        record: Mapping[str, Any],
        told: GraphRecord,
        content: ProgramContent,
        weights: Mapping[str, torch.Tensor],
    ) -> Future[ProgramCall | None] | None:
        """Returns the call of a device program, if it is verified. A thread loads it."""
        options = {**compile_options(told.programs[0].precision), **record["device_options"]}
        cache = ProgramCache(self._config.cache_dir)
        key = content.key(weights, options=options)
        if not self._is_right(cache, key):
            return None
        input_orders = [_order(order) for order in record["input_orders"]]
        output_orders = [_order(order) for order in record["output_orders"]]
        home, index_checks = record["home"], record["index_checks"]

        def load() -> ProgramCall | None:
            try:
                program = cache.find(key, name=told.name, options=options)
                if program is None:
                    return None
                call = ProgramCall(
                    program, input_orders=input_orders, output_orders=output_orders, home=home
                )
                check_indices(program, index_checks)
            except (ProgramError, *_OTHER_FORM) as failure:
                _logger.warning("graph store: a program cannot be loaded (%s)", failure)
                return None
            publish(told)
            return call

        return _loaded_ahead(load)

    def _kernels(
        self,
        record: Mapping[str, Any],
        told: GraphRecord,
        content: ProgramContent,
        weights: Mapping[str, torch.Tensor],
    ) -> KernelCall | None:
        """Returns the call of a kernel program, if it is cached and verified."""
        cache = ProgramCache(self._config.cache_dir)
        key = content.key(weights, options=kernel_options(record["home"]))
        found = find_kernels(cache, key) if self._is_right(cache, key) else None
        if found is None:
            return None
        names = [str(place) for place in record["inputs"]]
        call = KernelCall(*found, input_names=names, name=told.name)
        publish(told)
        return call

    def _is_right(self, cache: ProgramCache, key: str) -> bool:
        """Whether a program is verified, or verification is off."""
        if self._config.verify != "first":
            return True
        # With other weights it is another program, which may never have run.
        verdict = Verdict.from_json(cache.verdict(key))
        return verdict is not None and verdict.status != "wrong"

    def settle(self, *, is_plain: bool) -> None:
        """Records whether the graph's call is plain, without AOTAutograd's wrappers."""
        self._is_plain = is_plain

    def traced(self, graph: fx.Graph) -> None:
        """Called by AOTAutograd's inference compiler, inside torch's tracing context."""
        context = torch._guards.TracingContext.try_get()
        facts = None if context is None else context.fw_metadata
        if context is None or facts is None:
            return
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        plain = torch._functorch._aot_autograd.schemas.OutputType.non_alias
        self._is_plain = (
            len(placeholders) == len(self._inputs)
            and not any(info.mutates_data or info.mutates_metadata for info in facts.input_info)
            and all(
                info.output_type is plain and not info.requires_grad for info in facts.output_info
            )
            and facts.num_intermediate_bases == 0
            and not facts.tokens
            and not facts.is_rng_op_functionalized
            and not context.guards_context.aotautograd_guards
        )

    @property
    def is_plain(self) -> bool:
        """Whether AOTAutograd left the call unchanged when it traced the graph."""
        return self._is_plain

    def tuned_by(self, key: str, name: str | None) -> None:
        """Records the tuning candidate that was used; see npu_compiler.tuning."""
        self._tuning = (key, name)

    def keep(self, record: GraphRecord, assembled: Assembled) -> None:
        """Stores the compiled graph, if later processes can use it."""
        inputs, self._inputs = self._inputs, ()
        if self._key is None or not self._is_plain or len(assembled.built) != 1 or record.eager:
            return
        built = assembled.built[0]
        ports = assembled.ports
        if built.content is None or ports is None:
            return
        places = ports.places
        weights = {name: places[name] for name in built.content.weights}
        if any(inputs[position].is_inference() for position in weights.values()):
            return
        self._store.write(
            self._key,
            {
                "content": asdict(built.content),
                "weights": weights,
                "inputs": [places[name] for name in built.call.input_names],
                "outputs": ports.outputs,
                "input_orders": built.input_orders,
                "output_orders": built.output_orders,
                "home": built.home,
                "device_options": dict(built.device_options),
                "index_checks": [dict(check) for check in built.index_checks],
                "tuning": self._tuning,
                "graph": asdict(record),
            },
        )


def _loaded_ahead(load: Callable[[], ProgramCall | None]) -> Future[ProgramCall | None]:
    """Calls a function on another thread, while Dynamo builds its guards."""
    device_index = current_device()

    def work() -> ProgramCall | None:
        with switching_often():
            set_device(device_index)  # of this thread
            return load()

    pool = ThreadPoolExecutor(1, thread_name_prefix="npu-load")
    loading = pool.submit(work)
    pool.shutdown(wait=False)
    return loading


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    names = ("weights", "ops", "compression")
    return {key: tuple(one) if key in names else one for key, one in content.items()}


def _order(axes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axes is None else tuple(axes)


def _tuned_name(key: str, config: CompilerConfig) -> str | None:
    """Returns the name of the candidate recorded as the fastest."""
    if not (GraphStore(config.cache_dir).directory.parent / "tuning").is_dir():
        return None
    from npu_compiler.tuning.candidates import recorded_candidate  # late: with the ops of lowering

    candidate = recorded_candidate(key, config)
    return None if candidate is None else candidate.name


def _foreign_ops() -> frozenset[str]:
    """Returns ops with a plugin's converter; their programs are rebuilt in each process."""
    # The table is read only if a plugin may have changed it.
    is_imported = "npu_compiler.lowering.registry" in sys.modules
    if not is_imported and not has_plugins("npu_compiler.converters"):
        return frozenset()
    from npu_compiler.lowering.registry import foreign_ops

    return foreign_ops()
