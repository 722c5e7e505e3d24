"""Captures one step of a decoder-only model as a graph with its KV cache as inputs.

The step takes new tokens and a cache of past ones, and returns logits and the longer cache. No
class of transformers is changed: the model is called as its own generate() calls it, on tensors
with symbolic sizes.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from transformers.cache_utils import Cache, DynamicLayer

from npu_llm.capture.cache_facts import LayerCache, cache_layers
from npu_llm.capture.origins import noted_modules
from npu_llm.capture.repeated_layers import LayersDifferError, repeated_layers
from npu_llm.errors import CaptureError
from npu_llm.older_transformers import as_in_newer

__all__ = ["CapturedStep", "LayerCache", "capture_step"]

_logger = logging.getLogger(__name__)

# What may come of layers that were copied; without copies it comes again, or does not.
_COPY_FAILURES = (
    LayersDifferError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip

# Stand-ins for the symbolic sizes. No model has a dimension of one of these sizes, so a size that
# torch fixed by comparing it with one of the model's own is noticed at once.
_BATCH, _TOKENS, _PAST, _KEPT = 11, 13, 17, 5


@dataclass(frozen=True)
class CapturedStep:
    """One step as a graph.

    The graph's placeholders are the `inputs`, then key and value of each layer; its outputs are the
    logits (batch, kept, vocabulary) in float32, then the longer key and value of each layer.

    Attributes:
        graph_module: the graph.
        inputs: names of the inputs before the cache, in order: input_ids (batch, tokens) int64,
            attention_mask (batch, past + tokens) int64, position_ids (batch, tokens) int64 if the
            model takes them, logits_to_keep (kept,) int64, the indices of the tokens whose logits
            are wanted.
        layers: the cache's layers.
        vocabulary: token ids are below this.
        limits: conditions on the sizes that the trace assumed, as text.
    """

    graph_module: fx.GraphModule
    inputs: tuple[str, ...]
    layers: tuple[LayerCache, ...]
    vocabulary: int
    limits: tuple[str, ...]

    @property
    def caches(self) -> tuple[tuple[int, int], ...]:
        """Heads and size of each cache: key and value of each layer."""
        both = (
            ((layer.key_heads, layer.key_dim), (layer.value_heads, layer.value_dim))
            for layer in self.layers
        )
        return tuple(cache for layer in both for cache in layer)

    @property
    def cache_names(self) -> tuple[str, ...]:
        """A name for each cache."""
        kinds = ("key", "value")
        return tuple(f"past.{i}.{kind}" for i in range(len(self.layers)) for kind in kinds)


def capture_step(
    model: torch.nn.Module, *, on_progress: Callable[[float], None] = lambda share: None
) -> CapturedStep:
    """Traces one step of a model.

    Args:
        model: a decoder-only model of transformers, on cpu, in eval mode; its dtype is the graph's.
        on_progress: called with the share of the trace that is done, 0.0 to 1.0.

    Raises:
        CaptureError: [unsupported-cache] if the model keeps anything but keys and values per
            layer, [fixed-size] if it treats a size that must vary as fixed, [capture-failed] if it
            cannot be traced.
    """
    accepted = set(inspect.signature(model.forward).parameters)
    layers = cache_layers(model)
    names = ["input_ids", "attention_mask", "position_ids", "logits_to_keep"]
    inputs = tuple(name for name in names if name != "position_ids" or name in accepted)
    step = _step(model, inputs, keeps="logits_to_keep" in accepted)

    def trace(*, repeat: bool) -> tuple[fx.GraphModule, list[torch.Tensor], ShapeEnv]:
        environment = ShapeEnv()
        fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
        examples = _examples(inputs, layers, fake)
        with (
            _count_modules(model, on_progress) as count,
            repeated_layers(model, on_copy=count) if repeat else nullcontext(),
            as_in_newer(model),
            noted_modules(model),
        ):
            graph_module = make_fx(
                step,
                tracing_mode="symbolic",
                pre_dispatch=True,
                _allow_non_fake_inputs=True,
                record_stack_traces=True,
            )(*examples)
        return graph_module, examples, environment

    with torch.no_grad(), warnings.catch_warnings():
        # Tracing warns about code that runs many times; this runs once.
        warnings.simplefilter("ignore")
        try:
            try:
                graph_module, examples, environment = trace(repeat=True)
            except _COPY_FAILURES as failure:
                _logger.debug("%s: traced layer by layer: %s", type(model).__name__, failure)
                graph_module, examples, environment = trace(repeat=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as failure:
            lines = str(failure).strip().splitlines() or [type(failure).__name__]
            raise CaptureError(
                f"{type(model).__name__}: must be traceable with a cache of varying length; got: "
                f"{lines[0].rstrip('.')}. Only models whose step is free of such a condition are "
                "supported.",
                code="capture-failed",
            ) from failure
    _check_sizes(model, examples)
    _join_weights(graph_module)
    limits = tuple(str(guard.expr) for guard in environment.guards)
    config: Any = model.config
    vocabulary = int(config.get_text_config().vocab_size)
    return CapturedStep(graph_module, inputs, layers, vocabulary, limits)


def _examples(
    inputs: Sequence[str], layers: Sequence[LayerCache], fake: FakeTensorMode
) -> list[torch.Tensor]:
    def make(name: str, tensor: torch.Tensor, *varying: int) -> torch.Tensor:
        sizes = [
            DimDynamic.DUCK if dim in varying else DimDynamic.STATIC for dim in range(tensor.dim())
        ]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return fake.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)

    integers: dict[str, torch.Tensor] = {
        "input_ids": torch.zeros(_BATCH, _TOKENS, dtype=torch.int64),
        "attention_mask": torch.ones(_BATCH, _PAST + _TOKENS, dtype=torch.int64),
        "position_ids": torch.zeros(_BATCH, _TOKENS, dtype=torch.int64),
        "logits_to_keep": torch.zeros(_KEPT, dtype=torch.int64),
    }
    examples = [make(name, integers[name], *range(integers[name].dim())) for name in inputs]
    for index, layer in enumerate(layers):
        key = torch.zeros(_BATCH, layer.key_heads, _PAST, layer.key_dim)
        value = torch.zeros(_BATCH, layer.value_heads, _PAST, layer.value_dim)
        examples += [make(f"key_{index}", key, 0, 2), make(f"value_{index}", value, 0, 2)]
    return examples


def _step(
    model: torch.nn.Module, inputs: Sequence[str], *, keeps: bool
) -> Callable[..., tuple[torch.Tensor, ...]]:
    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = dict(zip(inputs, tensors, strict=False))
        kept = arguments["logits_to_keep"]
        if not keeps:
            del arguments["logits_to_keep"]
        cache = _filled_cache(tensors[len(inputs) :])
        output = model(**arguments, past_key_values=cache, use_cache=True, return_dict=True)
        logits = output.logits if keeps else output.logits[:, kept]
        results = [logits.float()]
        for layer in cache.layers:
            results += [layer.keys, layer.values]
        return tuple(results)

    return step


def _filled_cache(tensors: Sequence[torch.Tensor]) -> Cache:
    """Returns a cache that holds the given tensors, each layer with its whole past.

    Layers with a sliding window also keep their whole past: their mask hides what is outside the
    window, and a cache that only grows can stay inside the program.
    """
    layers = []
    for key, value in zip(tensors[::2], tensors[1::2], strict=True):
        layer = DynamicLayer()
        layer.keys, layer.values = key, value
        layer.dtype, layer.device = key.dtype, key.device
        layer.is_initialized = True
        layers.append(layer)
    return Cache(layers=layers)


def _join_weights(graph_module: fx.GraphModule) -> None:
    """Makes a weight that several modules share, such as a tied embedding, a single node.

    Tracing makes one for each use, and compression could not tell that they are the same.
    """
    first: dict[int, fx.Node] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        known = first.setdefault(id(getattr(graph_module, str(node.target))), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def _check_sizes(model: torch.nn.Module, examples: Sequence[torch.Tensor]) -> None:
    """Raises if tracing fixed one of the sizes that vary from call to call."""
    ids, mask, key = examples[0], examples[1], examples[-1]
    watched = {"batch": ids.shape[0], "tokens": ids.shape[1], "cache length": key.shape[2]}
    watched["mask length"] = mask.shape[1]
    for name, size in watched.items():
        if isinstance(size, int) or size.node.maybe_as_int() is not None:
            raise CaptureError(
                f"{type(model).__name__}: the {name} must be free to vary; got a model whose code "
                f"fixes it at {size}. Such models are not supported yet.",
                code="fixed-size",
            )


@contextmanager
def _count_modules(
    model: torch.nn.Module, report: Callable[[float], None]
) -> Iterator[Callable[[torch.nn.Module], None]]:
    """Reports which share of the model's modules has run; yields what counts one that did not."""
    modules = _leaves(model)
    done = 0

    def count(module: torch.nn.Module) -> None:
        nonlocal done
        done += len(_leaves(module))
        report(done / len(modules))

    handles = [module.register_forward_hook(lambda one, *_: count(one)) for module in modules]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()


def _leaves(module: torch.nn.Module) -> list[torch.nn.Module]:
    return [one for one in module.modules() if not any(one.children())]
