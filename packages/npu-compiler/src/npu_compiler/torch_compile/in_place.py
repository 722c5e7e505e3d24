"""npu_compiler.compile: a module compiled in place.

The module stays what it is: its class, parameters, buffers, hooks and state_dict are untouched, and
only calling it goes another way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from npu_compiler.errors import OptionError
from npu_compiler.options import CompilerConfig, resolve_config
from npu_compiler.torch_compile.backend import npu

__all__ = ["compile", "compile_following", "compiled_config", "options_of", "plain_call"]

# Of nn.Module: what stands in for _call_impl when it is not None. Copies and pickles leave it out.
_SLOT = "_compiled_call_impl"


def compile(  # noqa: A001  # the name its users know
    model: nn.Module, config: CompilerConfig | None = None, **options: Any
) -> nn.Module:
    """Compiles a module for the device, in place.

    The graphs are captured at the first call, and again for inputs that they do not serve. Calling
    this again replaces the former configuration. Weights may change later, in place or by
    load_state_dict: the next call computes with the new ones.

    Without `training` the module is put into evaluation mode and its results take no gradient.

    Args:
        model: any module, also a single layer; its inputs may live on cpu or npu, where the results
            then are.
        config: the options.
        options: the options by name, instead of config.

    Returns:
        The module that was given.

    Raises:
        OptionError: [compile-module] when model is not a module, [option-conflict] when both config
            and options are given, [option-place] for activations, and as CompilerConfig.
    """
    is_compiled = isinstance(model, torch._dynamo.OptimizedModule)
    if not isinstance(model, nn.Module) or is_compiled:
        what = "a result of torch.compile" if is_compiled else type(model).__name__
        raise OptionError(
            f"npu_compiler.compile: model must be an nn.Module that is not compiled; got {what}. "
            'Pass the module itself; for other callables use torch.compile(..., backend="npu").',
            code="compile-module",
        )
    resolved = resolve_config("npu_compiler.compile", config, options)
    if resolved.use_to:
        model.to("npu")
    model.train(bool(resolved.training))
    compile_following(model, replace(resolved, training=bool(resolved.training)))
    return model


def compile_following(model: nn.Module, config: CompilerConfig) -> None:
    """Compiles a module in place without a change of its mode.

    Where training is None, grad mode decides at each call, as under torch.compile.
    """
    model.__dict__[_SLOT] = _compiled_call(model, config)


def compiled_config(module: nn.Module) -> CompilerConfig | None:
    """Returns the options with which a module was compiled in place, or None when it was not."""
    found = getattr(getattr(module, _SLOT, None), "npu_config", None)
    return found if isinstance(found, CompilerConfig) else None


def plain_call(module: nn.Module) -> Callable[..., Any]:
    """Returns the module's call with hooks and without what compile() put in its place.

    Dynamo keeps what it compiled with the code that was called. So that modules of one class do not
    count as recompilations of each other, and layers of torch's own are not passed over as its
    internals are, each module gets code of its own.
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

    @functools.wraps(module.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if config.training is not False:
            return fast(*args, **kwargs)
        with torch.no_grad():
            return fast(*args, **kwargs)

    call.npu_config = config  # type: ignore[attr-defined]
    return call
