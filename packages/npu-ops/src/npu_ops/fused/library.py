"""Schemas and gradients of `torch.ops.npu`.

Each op is in a separate module of this package.
"""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["define", "implement", "needed_gradients", "register_gradient"]

_LIBRARY = torch.library.Library("npu", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> None:
    """Defines an op; kernel and fake are registered in C++, or by `implement`."""
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]


def register_gradient(
    name: str,
    *,
    setup_context: Callable[..., None] | None,
    backward: Callable[..., Any],
) -> None:
    """Registers a gradient like torch.library.register_autograd, but builds it at first use.

    The import of torch imports this package, and building a gradient costs 0.5 ms.

    Args:
        name: name of the op, without namespace.
        setup_context: called as `setup_context(ctx, inputs, output)`, with keyword_only_inputs when
            the schema has keyword-only arguments; None if backward needs nothing.
        backward: called as `backward(ctx, *grads)`; a gradient or None per positional argument.
    """
    built: list[Callable[..., Any]] = []

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not built:
            from torch._library import autograd

            op = getattr(torch.ops.npu, name).default
            info = autograd.Info(_backward_fn=backward, _setup_context_fn=setup_context)
            built.append(autograd.make_autograd_impl(op, info))
        return built[0](keys, *args, **kwargs)

    implement(name, "Autograd", kernel)


def implement(name: str, key: str, kernel: Callable[..., Any]) -> None:
    """Registers a Python kernel of an op under a dispatch key.

    C++ kernels are registered in C++; this is for ops composed of others, and for autograd beyond
    register_gradient. A kernel for "Autograd" or "ADInplaceOrView" has the dispatch key set as its
    first argument.
    """
    with_keyset = key in ("Autograd", "ADInplaceOrView")
    _LIBRARY.impl(name, kernel, key, with_keyset=with_keyset)  # type: ignore[no-untyped-call]


def needed_gradients(ctx: Any, count: int) -> tuple[bool, ...]:
    """Returns whether each of the first `count` arguments needs a gradient.

    The dispatcher omits trailing arguments that have their defaults.
    """
    given = ctx.needs_input_grad
    return (*given, *[False] * count)[:count]
