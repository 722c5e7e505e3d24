"""The backend of torch.compile, and compiling of a module in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import fx, nn
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils import _pytree

from npu_compiler.config import read_settings
from npu_compiler.errors import OptionError
from npu_compiler.option_names import check_device_options, nearest
from npu_compiler.options import AUTO, CompilerConfig, backend_options, resolve_config
from npu_compiler.torch_compile.dynamo import shorten_call, watch_compilations
from npu_compiler.torch_compile.graph_cache import GraphMemory
from npu_compiler.torch_compile.model_inputs import moved, refusals_named
from npu_compiler.tuning.run import current_run
from npu_runtime import FrozenTensors
from npu_runtime.npu import is_current_stream_capturing
from npu_runtime.npu.graphs import outside_capture
from npu_runtime.refusal import check_environment

__all__ = [
    "compile",
    "compile_following",
    "compiled_config",
    "npu",
    "options_of",
    "plain_call",
    "refresh",
]

_TUNING_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
_MODES = ("default", "reduce-overhead", *_TUNING_MODES)

# dynamo passes a graph. If an earlier process compiled it, it is loaded from the cache; otherwise
# it is traced in full.


def npu(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph from dynamo; the entry point `npu` of group `torch_dynamo_backends`.

    Args:
        graph_module: as dynamo captured it.
        example_inputs: its inputs, fake or real.
        options: see npu_compiler.options.CompilerConfig, as `torch.compile(options={...})`.
        mode: torch.compile's mode. "default" and "reduce-overhead" are the same, because a graph is
            always few programs, without overhead per operator. "max-autotune" and
            "max-autotune-no-cudagraphs" measure the ways to compile an inference graph at its first
            call, as npu_compiler.tune does, unless they were measured before.

    Returns:
        A function that runs the graph. For an unknown option its call raises the OptionError,
        because dynamo would wrap an error raised here.
    """
    watch_compilations()
    shorten_call()
    try:
        return _compiled(graph_module, example_inputs, options, mode)
    except OptionError as failure:
        return _raising(failure)


def _compiled(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None,
    mode: str | None,
) -> Callable[..., Any]:
    config = backend_options(options)
    is_tuning = _is_tuning(mode)
    check_device_options(config.device_options)
    if config.target is None:
        session = current_run()
        is_estimated = session is not None and session.estimator is not None
        config = replace(config, target="NPU") if is_estimated else _with_setting(config)
    is_inference = config.training is False or config.compression is not None
    if is_inference and torch.is_grad_enabled():
        run = _without_gradients(graph_module, example_inputs, config, is_tuning)
    else:
        run = _capture(graph_module, example_inputs, config, is_tuning)
    if any(map(_has_symbols, example_inputs)):
        return _static_in_captures(run, graph_module, config, is_inference=is_inference)
    return run


def _with_setting(config: CompilerConfig) -> CompilerConfig:
    target = read_settings().target
    try:
        return replace(config, target=target)
    except OptionError as failure:
        if failure.code != "option-value":
            raise
        raise OptionError(
            'NPU_COMPILE_TARGET must be "openvino", "kernels", "NPU" or a name of `npu-compiler '
            f"target list`, got {target!r}. Unset the variable for the automatic choice.",
            code="bad-setting",
        ) from failure


def _has_symbols(value: Any) -> bool:
    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _static_in_captures(
    run: Callable[..., Any],
    graph_module: fx.GraphModule,
    config: CompilerConfig,
    *,
    is_inference: bool,
) -> Callable[..., Any]:
    """Returns a function that calls `run`, or in a captured step a graph of fixed sizes.

    A captured program has fixed sizes, but dynamo makes those of a second module dynamic by itself.
    """
    static: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def call(*inputs: Any) -> Any:
        if not is_current_stream_capturing():
            return run(*inputs)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        key = tuple(
            (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value
            for value in inputs
        )
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_inference):
            if key not in static:
                with outside_capture():
                    static[key] = _trace(_with_numbers(graph_module, inputs), tensors, config)
            return static[key](*tensors)

    return call


def _with_numbers(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Returns a copy of a graph with the values of inputs that are not tensors as constants."""
    graph = fx.Graph()
    copied: dict[fx.Node, Any] = {}
    values = iter(inputs)
    for node in graph_module.graph.nodes:
        value = next(values) if node.op == "placeholder" else None
        if node.op == "placeholder" and not isinstance(value, torch.Tensor):
            copied[node] = value
        else:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    return fx.GraphModule(graph_module, graph)


def _is_tuning(mode: str | None) -> bool:
    if mode not in (None, *_MODES):
        raise OptionError(
            f'torch.compile(backend="npu"): mode must be one of {", ".join(map(repr, _MODES))}, '
            f"got {mode!r}. {nearest(str(mode), _MODES)}Omit it for the default.",
            code="option-value",
        )
    return mode in _TUNING_MODES


def _raising(failure: OptionError) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise failure.with_traceback(None)

    return refuse


def _capture(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    is_tuning: bool,
) -> Callable[..., Any]:
    if config.keep_float32 == AUTO:  # the choice depends on values, which the cache does not store
        return _trace(graph_module, example_inputs, config)
    memory = GraphMemory(graph_module, example_inputs, config)

    def full_way(inputs: Sequence[Any]) -> Callable[..., Any]:
        return _trace(graph_module, inputs, config, rebuilds=1)

    recalled = memory.recall(full_way, is_tuned=is_tuning)
    return recalled or _trace(
        graph_module, example_inputs, config, memory=memory, is_tuning=is_tuning
    )


def _trace(
    graph_module: fx.GraphModule, inputs: Sequence[Any], config: CompilerConfig, **how: Any
) -> Callable[..., Any]:
    # Late: importing AOTAutograd, passes and converters takes half a second, which cached graphs do
    # not need.
    from npu_compiler.graph_compiler.failures import is_failure, report_failure
    from npu_compiler.torch_compile.tracing import trace

    try:
        return trace(graph_module, inputs, config, **how)
    except Exception as failure:  # from AOTAutograd, or a defect of this package
        # Dynamo's checkpoint call relies on AOTAutograd for the RNG state.
        has_checkpoint = any(
            node.target is tag_activation_checkpoint for node in graph_module.graph.nodes
        )
        if has_checkpoint or not is_failure(failure):
            raise
        report_failure(
            "torch.compile", failure, instead="the graph runs eagerly", is_strict=config.strict
        )
        return graph_module.forward


def _without_gradients(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    is_tuning: bool,
) -> Callable[..., Any]:
    """Captures an inference graph although the caller has gradients enabled."""
    with torch.no_grad():
        captured = _capture(graph_module, example_inputs, config, is_tuning)

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return captured(*args)

    return run


# torch.compile imports this module before dynamo runs. Errors in the environment are raised here,
# because dynamo would wrap them.
check_environment()
read_settings()
watch_compilations()

# Read by torch.compile's listing of backends.
npu._tags = ()  # type: ignore[attr-defined]


# The module's class, parameters, buffers, hooks and state_dict stay untouched; only its call is
# replaced.

# nn.Module calls this in place of _call_impl unless it is None. Copies and pickles omit it.
_SLOT = "_compiled_call_impl"


def compile(  # noqa: A001  # the name that users know
    model: nn.Module, config: CompilerConfig | None = None, **options: Any
) -> nn.Module:
    """Compiles a module for the device, in place.

    The graphs are captured at the first call, and again for inputs that their guards reject.
    Calling this again replaces the former configuration. Weights may change later, in place or by
    load_state_dict: the next call computes with the new ones.

    Without `training` the module is put into evaluation mode and its results take no gradient.

    Args:
        model: any module, also a single layer; its inputs may be on cpu or npu, and its results are
            on the same device.
        config: the options.
        options: the options by name, instead of config.

    Returns:
        The same module.

    Raises:
        OptionError: [compile-module] if model is not a module, [option-conflict] when both config
            and options are given, [option-place] for activations, and as CompilerConfig.
    """
    is_compiled = isinstance(model, torch._dynamo.OptimizedModule)
    if not isinstance(model, nn.Module) or is_compiled:
        what = "a result of torch.compile" if is_compiled else type(model).__name__
        raise OptionError(
            f"npu_compiler.compile: `model` must be an nn.Module that is not compiled, got {what}. "
            'Pass the module itself; for other callables use torch.compile(..., backend="npu").',
            code="compile-module",
        )
    resolved = resolve_config("npu_compiler.compile", config, options)
    if resolved.use_to:
        model.to("npu")
    model.train(bool(resolved.training))
    compile_following(model, replace(resolved, training=bool(resolved.training)))
    return model


def refresh(model: Callable[..., Any]) -> None:
    """Makes compiled code reread all its weights at its next call, and update the changed ones.

    Calls detect most changes in this process by themselves. This function is for the others:
    weights in a mapped file that was rewritten, a device that writes to pinned memory, and models
    compiled with `check_weights=False`.

    Args:
        model: the changed model, compiled or not. All compiled code that holds weights rereads
            them.

    Raises:
        OptionError: [compile-module] if it is not callable.
    """
    if not callable(model):
        raise OptionError(
            f"npu_compiler.refresh: `model` must be a module or a function, got "
            f"{type(model).__name__}. Pass the model whose weights changed.",
            code="compile-module",
        )
    FrozenTensors.suspect_all()


def compile_following(model: nn.Module, config: CompilerConfig) -> None:
    """Compiles a module in place without changing its mode.

    If training is None, grad mode decides at each call, as under torch.compile.
    """
    model.__dict__[_SLOT] = _compiled_call(model, config)


def compiled_config(module: nn.Module) -> CompilerConfig | None:
    """Returns the options with which a module was compiled in place, or None if it was not."""
    found = getattr(getattr(module, _SLOT, None), "npu_config", None)
    return found if isinstance(found, CompilerConfig) else None


def plain_call(module: nn.Module) -> Callable[..., Any]:
    """Returns the module's original call, with hooks.

    Dynamo keys compiled code by the code object of the call. Each module gets a separate code
    object, so that modules of one class do not count as recompilations of each other, and dynamo
    does not skip torch's own layers.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    call.__code__ = call.__code__.replace(co_name=f"call_{type(module).__name__}")
    return call


def options_of(config: CompilerConfig) -> dict[str, Any]:
    """Returns a configuration as torch.compile(options=...) takes it."""
    return {
        field.name: value
        for field in fields(config)
        if field.name not in ("dynamic", "use_to")
        and (value := getattr(config, field.name)) != field.default
    }


def _compiled_call(module: nn.Module, config: CompilerConfig) -> Callable[..., Any]:
    fast = torch.compile(
        plain_call(module), backend=npu, dynamic=config.dynamic, options=options_of(config)
    )

    name = type(module).__name__

    def compute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with refusals_named(name, (args, kwargs)):
            if config.training is not False:
                return fast(*args, **kwargs)
            with torch.no_grad():
                return fast(*args, **kwargs)

    @functools.wraps(module.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not config.use_to:
            return compute(args, kwargs)
        given = [x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        result = compute(*moved((args, kwargs), "npu"))
        return moved(result, "cpu") if given and all(x.is_cpu for x in given) else result

    call.npu_config = config  # type: ignore[attr-defined]
    return call
