"""Functional forms of ops that write to an argument: what a program can hold in their place.

A program returns what it computes. So the converter of a writing op is that of a second op, which
takes the same arguments, writes to none, and returns the new content of those that are written.
npu_compiler.passes.memory puts one in the place of the other.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from npu_compiler.graph.calls import op_name

__all__ = ["functional_form", "has_functional_form", "written_arguments"]

_ALIAS = re.compile(r"\([^()]*![^()]*\)")
# By name: the fragment that defines a form, and the schema of the op that it is of.
_MADE: dict[str, tuple[torch.library.Library, str]] = {}


def has_functional_form(key: Any) -> bool:
    """Whether a key is an op from outside of torch that writes to tensors among its arguments."""
    if not isinstance(key, torch._ops.OpOverload) or key.namespace in ("aten", "prim", "prims"):
        return False
    schema = key._schema
    written = [item for item in schema.arguments if item.alias_info and item.alias_info.is_write]
    is_plain = all(str(item.type) == "Tensor" for item in written)
    return bool(written) and is_plain and not any(item.alias_info for item in schema.returns)


def written_arguments(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Returns the names of the arguments that an op writes to, in the schema's order."""
    found = (item for item in op._schema.arguments if item.alias_info and item.alias_info.is_write)
    return tuple(item.name for item in found)


def functional_form(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Returns the op that stands for a writing one in a program, defined at the first call.

    `ns::append(Tensor(a!) cache, Tensor x) -> Tensor` has the form
    `ns::append_functional(Tensor cache, Tensor x) -> (Tensor, Tensor)`: the op's results, then the
    new content of each written argument. Its kernel runs the op on copies.
    """
    name = f"{op._opname}_functional"
    overload = op._overloadname
    qualified = f"{op.namespace}::{name}" + ("" if overload == "default" else f".{overload}")
    schema = str(op._schema)
    made = _MADE.get(qualified)
    if made is None or made[1] != schema:
        if made is not None:
            made[0]._destroy()  # type: ignore[no-untyped-call]
        _MADE[qualified] = _define(op, qualified), schema
    form = getattr(getattr(getattr(torch.ops, op.namespace), name), overload)
    assert isinstance(form, torch._ops.OpOverload)
    return form


def _define(op: torch._ops.OpOverload, qualified: str) -> torch.library.Library:
    library = torch.library.Library(op.namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    kinds = [*(str(item.type) for item in op._schema.returns), *["Tensor"] * len(_places(op))]
    arguments = _ALIAS.sub("", str(op._schema)).split("(", 1)[1].rsplit(" -> ", 1)[0]
    library.define(  # type: ignore[no-untyped-call]
        f"{qualified.split('::')[1]}({arguments} -> ({', '.join(kinds)})"
    )
    call = _on_copies(op)
    library.impl(  # type: ignore[no-untyped-call]
        qualified.split("::")[1], call, "CompositeExplicitAutograd"
    )
    torch.library.register_fake(qualified, call, lib=library)
    return library


def _places(op: torch._ops.OpOverload) -> list[int]:
    written = written_arguments(op)
    return [place for place, item in enumerate(op._schema.arguments) if item.name in written]


def _on_copies(op: torch._ops.OpOverload) -> Any:
    names = [item.name for item in op._schema.arguments]
    places = _places(op)
    namespace, name, overload = op.namespace, op._opname, op._overloadname
    by_name = {item.name for item in op._schema.arguments if item.kwarg_only}

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        for place in places:
            given[names[place]] = given[names[place]].clone()
        ordered = [value for name, value in given.items() if name not in by_name]
        # By name: its library may have gone with the op, and another have defined it again.
        current = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        results = current(*ordered, **{one: given[one] for one in by_name if one in given})
        own = results if isinstance(results, tuple) else () if results is None else (results,)
        whole = (*own, *(given[names[place]] for place in places))
        return whole if len(whole) > 1 else whole[0]

    call.__name__ = f"{op_name(op)} on copies"
    return call
