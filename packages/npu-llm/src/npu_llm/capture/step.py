"""Traces one step of a decoder-only model as a graph with its KV cache as inputs.

The step takes new tokens and a cache of past ones, and returns logits and the longer cache. No
transformers class is changed: the model is called as by its generate(), on tensors with symbolic
sizes. A model with recurrent states takes one token per step, as its own code does during
generation: its code never branches on the number of tokens.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from transformers.cache_utils import Cache, DynamicLayer

from npu_command.interpreter import collector_paused
from npu_llm.adapters.lora import SCALES, adapted, port_names, port_sizes
from npu_llm.cache_names import CACHE
from npu_llm.capture.functional import drop_grad_modes
from npu_llm.capture.graph_rewrites import allow_short_contexts, compute_known_numbers, make_real
from npu_llm.capture.layer_dedup import LayersDifferError, deduplicate_layers
from npu_llm.capture.model_cache import (
    REFUSALS,
    IndexedLayer,
    LayerCache,
    Placement,
    StatesDifferError,
    StateShape,
    cache_layers,
    find_states,
)
from npu_llm.capture.patches import all_experts, grouped_heads, record_modules
from npu_llm.errors import CaptureError
from npu_llm.kv_cache.static_layout import TOKEN_MASK
from npu_llm.older_transformers import as_in_newer
from npu_llm.progress import Advance, counted_modules

__all__ = ["CapturedStep", "LayerCache", "capture_step", "join_weights"]

_logger = logging.getLogger(__name__)

# Exceptions that copied layers may cause; without copies they are genuine, or do not occur.
_COPY_FAILURES = (
    LayersDifferError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip

# Example values of the symbolic sizes. No model has a dimension of one of these sizes, so that
# fixing a size by comparison with a dimension of the model is detected at once.
_BATCH, _TOKENS, _PAST, _KEPT, _RANKS = 11, 13, 17, 5, 7
# The attribute of transformers' layer for each of LayerCache.shapes.
_HELD_AS = {"key": "keys", "value": "values", "index": "indexer_keys"}
# With an indexer, the past must be longer than its choice, so that the choice is traced;
# npu_llm.capture.graph_rewrites then adds support for a shorter past.
_LONG_PAST = (1 << 30) + 3


@dataclass(frozen=True)
class CapturedStep:
    """One step as a graph.

    The graph's placeholders are the `inputs`, then key and value of each layer, and its indexer's
    keys if it has one, and finally the states. Its outputs are the logits (batch, kept, vocabulary)
    in float32, then the longer key and value of each layer, and so on.

    Attributes:
        graph_module: the graph.
        inputs: names of the inputs before the cache, in order: input_ids (batch, tokens) int64,
            attention_mask (batch, past + tokens) int64, position_ids (batch, tokens) int64 if the
            model takes them, logits_to_keep (kept,) int64, the indices of the tokens whose logits
            are returned. A model with states takes one token; its attention_mask is missing if it
            has no keys, and token_mask (batch, tokens) int64 is 0 for rows with unchanged states.
        layers: the cache's layers.
        vocabulary: vocabulary size; token ids are below it.
        limits: conditions on the sizes that the trace assumed, as text.
        states: recurrent states, (batch, *sizes) float32 each.
        reads_chunks: whether a step with states reads many tokens of one row, see
            npu_llm.capture.chunked_step.
        adapted: inputs and outputs of the layers with adapter inputs, which are the step's last
            inputs.
    """

    graph_module: fx.GraphModule
    inputs: tuple[str, ...]
    layers: tuple[LayerCache, ...]
    vocabulary: int
    limits: tuple[str, ...]
    states: tuple[StateShape, ...] = ()
    adapted: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reads_chunks: bool = False

    @property
    def caches(self) -> tuple[tuple[int, int], ...]:
        """Heads and size of each cache: key and value of each layer, and its indexer's keys."""
        return tuple(shape for layer in self.layers for shape in layer.shapes.values())

    @property
    def cache_names(self) -> tuple[str, ...]:
        """A name for each cache."""
        return tuple(
            f"past.{place}.{kind}"
            for place, layer in enumerate(self.layers)
            for kind in layer.shapes
        )


def capture_step(
    model: torch.nn.Module,
    *,
    adapted_modules: Sequence[str] = (),
    on_progress: Advance = lambda share, doing: None,
) -> CapturedStep:
    """Traces one step of a model.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode; its dtype is the graph's.
        adapted_modules: paths of linear layers with adapter inputs, see npu_llm.adapters.lora.
        on_progress: called with the share done, 0.0 to 1.0, and the current position.

    Raises:
        CaptureError: [unsupported-cache] if the cache has more than keys and values per layer,
            [fixed-size] if the model fixes a dynamic size, [capture-failed] if it cannot be traced.
    """
    accepted = set(inspect.signature(model.forward).parameters)
    layers, placement = _kept(model)
    names = ["input_ids", "attention_mask", "position_ids", "logits_to_keep"]
    inputs = tuple(name for name in names if name != "position_ids" or name in accepted)
    keeps = "logits_to_keep" in accepted
    if placement is not None:
        inputs = tuple(name for name in inputs if name != "attention_mask" or layers)
        inputs = (*inputs, TOKEN_MASK)
    inputs = (*inputs, *port_names(adapted_modules))
    if placement is None:
        step = _step(model, inputs, layers, adapted_modules, keeps=keeps)
    else:
        step = _step_of_states(model, inputs, placement, adapted_modules, keeps=keeps)
    states = () if placement is None else placement.shapes
    sizes = port_sizes(model, adapted_modules)

    def trace(*, repeat: bool) -> tuple[fx.GraphModule, list[torch.Tensor], ShapeEnv]:
        environment = ShapeEnv()
        fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
        # Caching calls with symbolic sizes costs more than it saves (SmolLM2: 3.7 s, now 3.2).
        fake.cache_enabled = False
        rows = _BATCH if placement is None or placement.takes_rows else 1
        examples = _examples(inputs, layers, fake, states, sizes, rows=rows)
        with (
            counted_modules(model, on_progress) as count,
            deduplicate_layers(model, on_copy=count) if repeat else nullcontext(),
            as_in_newer(model),
            all_experts(model),
            grouped_heads() if states else nullcontext(),
            record_modules(model),
        ):
            graph_module = make_fx(
                step,
                tracing_mode="symbolic",
                pre_dispatch=True,
                _allow_non_fake_inputs=True,
                record_stack_traces=True,
            )(*examples)
        return graph_module, examples, environment

    with torch.no_grad(), warnings.catch_warnings(), _undisturbed():
        # Tracing warns about code that runs repeatedly; this runs once.
        warnings.simplefilter("ignore")
        try:
            try:
                graph_module, examples, environment = trace(repeat=not states and not sizes)
            except _COPY_FAILURES as failure:
                _logger.debug("%s: traced layer by layer: %s", type(model).__name__, failure)
                graph_module, examples, environment = trace(repeat=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as failure:
            lines = str(failure).strip().splitlines() or [type(failure).__name__]
            raise CaptureError(
                f"`{type(model).__name__}` must be traceable with a dynamic cache length, got: "
                f"{lines[0].rstrip('.')}. Only models without such a condition are supported.",
                code="capture-failed",
            ) from failure
    takes_rows = placement is None or placement.takes_rows
    _check_sizes(model, inputs, layers, examples, takes_rows=takes_rows)
    drop_grad_modes(graph_module)
    join_weights(graph_module)
    compute_known_numbers(graph_module)
    make_real(graph_module)
    allow_short_contexts(graph_module)
    limits = tuple(str(guard.expr) for guard in environment.guards)
    config: Any = model.config
    vocabulary = int(config.get_text_config().vocab_size)
    return CapturedStep(graph_module, inputs, layers, vocabulary, limits, states, sizes)


def _kept(model: torch.nn.Module) -> tuple[tuple[LayerCache, ...], Placement | None]:
    """Returns the layers with keys and values, and the locations of states if there are any."""
    try:
        return cache_layers(model), None
    except CaptureError as refusal:
        try:
            placement = find_states(model)
            if placement.layers and not placement.takes_rows:
                raise StatesDifferError("keys, but a step takes one row")
        except (StatesDifferError, *REFUSALS) as failure:
            _logger.debug("%s: its states were not found: %s", type(model).__name__, failure)
            raise refusal from failure
    return placement.layers, placement


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Disables slow parts of a trace that have no effect on its result.

    Garbage collection traverses the growing graph repeatedly. For the log of symbols, torch imports
    Inductor to skip its frames (torch 2.13, 2026-11-23).
    """
    find_frames = getattr(symbolic_shapes, "uninteresting_files", None)
    if find_frames is not None:
        symbolic_shapes.uninteresting_files = functools.cache(set[str])
    try:
        with collector_paused():
            yield
    finally:
        if find_frames is not None:
            symbolic_shapes.uninteresting_files = find_frames


def _examples(
    inputs: Sequence[str],
    layers: Sequence[LayerCache],
    fake: FakeTensorMode,
    states: Sequence[StateShape],
    sizes: Mapping[str, tuple[int, int]],
    *,
    rows: int,
) -> list[torch.Tensor]:
    def make(name: str, tensor: torch.Tensor, *varying: int) -> torch.Tensor:
        sizes = [
            DimDynamic.DUCK if dim in varying else DimDynamic.STATIC for dim in range(tensor.dim())
        ]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return fake.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)

    tokens = 1 if states else _TOKENS
    past = _LONG_PAST if any(layer.index_dim for layer in layers) else _PAST
    caches: dict[tuple[int, int], torch.Tensor] = {}
    with FakeTensorMode():  # takes no memory for any sizes
        integers: dict[str, torch.Tensor] = {
            "input_ids": torch.zeros(rows, tokens, dtype=torch.int64),
            "attention_mask": torch.ones(rows, past + tokens, dtype=torch.int64),
            "position_ids": torch.zeros(rows, tokens, dtype=torch.int64),
            "logits_to_keep": torch.zeros(_KEPT, dtype=torch.int64),
            TOKEN_MASK: torch.ones(rows, tokens, dtype=torch.int64),
        }
        for layer in layers:
            for heads, size in layer.shapes.values():
                caches[heads, size] = torch.zeros(rows, heads, past, size)
        given = {SCALES: torch.zeros(rows, _RANKS)} if sizes else {}
        for module, (reads, gives) in sizes.items():
            given[f"adapter.{module}.a"] = torch.zeros(_RANKS, reads)
            given[f"adapter.{module}.b"] = torch.zeros(gives, _RANKS)
        held = [torch.zeros(rows, *state.sizes) for state in states]
    examples = []
    for name in inputs:
        if name in given:
            ranks = {"a": [0], "b": [1]}.get(name.rpartition(".")[2], [0, 1])
            examples.append(make(name, given[name], *ranks))
            continue
        varying = [dim for dim, size in enumerate(integers[name].shape) if size != 1]
        examples.append(make(name, integers[name], *varying))
    caches = {
        shape: make(f"cache_{place}", cache, 0, 2)
        for place, (shape, cache) in enumerate(caches.items())
    }
    with fake:  # separate symbols per layer would take 10 ms, and mean the same
        for layer in layers:
            examples += [torch.empty_like(caches[shape]) for shape in layer.shapes.values()]
    varying = [0] if rows > 1 else []
    for state, one in zip(states, held, strict=True):
        examples.append(make(state.name, one, *varying))
    return examples


def _step(
    model: torch.nn.Module,
    inputs: Sequence[str],
    layers: Sequence[LayerCache],
    modules: Sequence[str],
    *,
    keeps: bool,
) -> Callable[..., tuple[torch.Tensor, ...]]:
    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments, added = _parted(inputs, tensors)
        kept = arguments["logits_to_keep"]
        if not keeps:
            del arguments["logits_to_keep"]
        cache = _filled_cache(layers, tensors[len(inputs) :])
        with adapted(model, modules, added):
            output = model(**arguments, **{CACHE: cache}, use_cache=True, return_dict=True)
        logits = output.logits if keeps else output.logits[:, kept]
        results = [logits.float()]
        for known, layer in zip(layers, cache.layers, strict=True):
            results += [getattr(layer, _HELD_AS[kind]) for kind in known.shapes]
        return tuple(results)

    return step


def _parted(
    inputs: Sequence[str], tensors: Sequence[torch.Tensor]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Splits inputs into the model's arguments and the adapter inputs."""
    named = dict(zip(inputs, tensors, strict=False))
    added = {name: named.pop(name) for name in inputs if name.startswith("adapter")}
    return named, added


def _step_of_states(
    model: torch.nn.Module,
    inputs: Sequence[str],
    placement: Placement,
    modules: Sequence[str],
    *,
    keeps: bool,
) -> Callable[..., tuple[torch.Tensor, ...]]:
    count = len(placement.grown)

    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments, added = _parted(inputs, tensors)
        caches, states = tensors[len(inputs) :][:count], tensors[len(inputs) + count :]
        counts = arguments.pop(TOKEN_MASK)[:, 0] != 0
        kept = arguments["logits_to_keep"]
        if not keeps:
            del arguments["logits_to_keep"]
        cache = placement.filled(model, caches, states)
        arguments[placement.argument] = cache
        with adapted(model, modules, added):
            output = model(**arguments, use_cache=True, return_dict=True)
        returned = getattr(output, placement.argument, None)
        grown, new = placement.taken(model, cache if returned is None else returned)
        logits = output.logits if keeps else output.logits[:, kept]
        # Padding leaves a row's states unchanged.
        chosen = [
            torch.where(counts.reshape(-1, *[1] * (old.dim() - 1)), one.to(old.dtype), old)
            for one, old in zip(new, states, strict=True)
        ]
        return (logits.float(), *grown, *chosen)

    return step


def _filled_cache(known: Sequence[LayerCache], tensors: Sequence[torch.Tensor]) -> Cache:
    """Returns a cache with the given tensors, each layer with its whole past.

    Layers with a sliding window also keep their whole past: their mask hides tokens outside the
    window, and a cache that only grows can stay inside the program.
    """
    left = iter(tensors)
    layers = []
    for one in known:
        layer = IndexedLayer() if one.index_dim else DynamicLayer()
        for kind in one.shapes:
            setattr(layer, _HELD_AS[kind], next(left))
        layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        layer.is_initialized = True
        layers.append(layer)
    return Cache(layers=layers)


def join_weights(graph_module: fx.GraphModule) -> None:
    """Gives a weight that several modules share, such as a tied embedding, a single node.

    Tracing creates one for each use, and compression could not detect that they are equal.
    """
    first: dict[int, fx.Node] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        known = first.setdefault(id(getattr(graph_module, str(node.target))), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def _check_sizes(
    model: torch.nn.Module,
    inputs: Sequence[str],
    layers: Sequence[LayerCache],
    examples: Sequence[torch.Tensor],
    *,
    takes_rows: bool,
) -> None:
    """Raises if tracing fixed one of the dynamic sizes."""
    named = dict(zip(inputs, examples, strict=False))
    watched: dict[str, Any] = {}
    if takes_rows:
        watched["batch size"] = named["input_ids"].shape[0]
    if TOKEN_MASK not in named:
        watched["token count"] = named["input_ids"].shape[1]
    if layers:
        watched["cache length"] = examples[len(inputs)].shape[2]
        watched["mask length"] = named["attention_mask"].shape[1]
    for name, size in watched.items():
        if isinstance(size, int) or size.node.maybe_as_int() is not None:
            raise CaptureError(
                f"`{type(model).__name__}` must have a dynamic {name}, got a model whose code "
                f"fixes it at {size}. Such models are not supported yet.",
                code="fixed-size",
            )
