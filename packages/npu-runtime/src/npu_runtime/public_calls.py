"""Argument checks of public functions: types, and errors of file access.

Without them, a wrong argument type would raise an AttributeError from inside the function. Each
function checks values itself.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar

from npu_runtime.errors import FileAccessError, KindError

if TYPE_CHECKING:
    import torch

__all__ = ["public_call"]

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[Any], bool]

# Of a long list, only the first elements are checked.
_LOOKED_AT = 64
# A longer integer does not fit a float, and Python refuses to print thousands of digits.
_MOST_BITS = 1024


def public_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function or method to check its arguments against its annotations.

    An int is accepted as float, an object with `__index__` (numpy integers) as int, and any
    iterable except str as a sequence. Integers have at most 1,024 bits. Names that the module
    imports only under TYPE_CHECKING are imported at the first call. Parameters without an
    annotation, or with one that cannot be resolved, accept anything.

    Raises:
        KindError: [argument-kind] an argument does not have the annotated type.
        FileAccessError: [file-access] the system denies access to a file.
        TypeError: the number or the names of the arguments are wrong.
    """
    signature_of = functools.cache(inspect.signature)  # late: torch imports this module
    checks: dict[str, Check] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        signature = signature_of(function)
        if not checks:
            checks.update(_checks(function, signature))
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if not checks[name](value):
                raise KindError(
                    f"{_subject(function)}: `{name}` must be {_annotation(signature, name)}, got "
                    f"{_shown(value)}. Pass one.",
                    code="argument-kind",
                )
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if getattr(error, "code", None) is not None or error.filename is None:
                raise
            raise FileAccessError(
                f"{_subject(function)}: {error.filename} must be an accessible file or folder, "
                f"got: {error.strerror}. Change its permissions, or name another.",
                code="file-access",
            ) from error

    return call


@functools.cache
def _number() -> torch.Tensor:
    import torch  # late: some commands run without it

    return torch.zeros((), dtype=torch.int64)


def _checks(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Check]:
    names = getattr(inspect.unwrap(function), "__globals__", {})
    found: dict[str, Check] = {}
    for name, parameter in signature.parameters.items():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = _resolved(annotation, names)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            annotation = Any
        is_default = _is_default(parameter.default)
        check = _check(annotation)
        found[name] = _either(is_default, check)
    return found


def _resolved(annotation: str, names: dict[str, Any]) -> Any:
    tree = _BareCallables().visit(ast.parse(annotation, mode="eval"))
    code = compile(tree, "<annotation>", "eval")
    for for_type_checkers in (False, True):
        known = {**names, **_for_type_checkers(names["__name__"])} if for_type_checkers else names
        try:
            return eval(code, known)
        except (NameError, AttributeError, TypeError):
            continue
    return Any  # for example, a class defined in a function


class _BareCallables(ast.NodeTransformer):
    """Removes the parameter and return types of Callable.

    They are not checked, and may name libraries that are imported late.
    """

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:  # name required by ast
        """Replaces Callable[...] by Callable."""
        if isinstance(node.value, ast.Name) and node.value.id == "Callable":
            return node.value
        return self.generic_visit(node)


@functools.cache
def _for_type_checkers(module: str) -> dict[str, Any]:
    """Returns the imports under `if TYPE_CHECKING` of a module; empty without source."""
    names = {"__name__": module, "__package__": sys.modules[module].__package__}
    with contextlib.suppress(OSError, ImportError):
        for line in ast.parse(inspect.getsource(sys.modules[module])).body:
            if isinstance(line, ast.If) and ast.unparse(line.test) == "TYPE_CHECKING":
                exec(compile(ast.Module(line.body, []), module, "exec"), names)
    return names


def _is_default(default: Any) -> Check:
    return lambda value: value is default


def _either(first: Check, second: Check) -> Check:
    return lambda value: first(value) or second(value)


def _check(annotation: Any) -> Check:
    """Returns whether a value has the type of an annotation."""
    if annotation in _OF_TYPE:
        return _OF_TYPE[annotation]
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        # The text of a path must not contain NUL.
        is_path = str in inner and any((typing.get_origin(p) or p) in _PATHS for p in inner)
        parts = [_check(part) for part in inner if not (is_path and part is str)]
        parts += [_is_path] * is_path
        return lambda value: any(part(value) for part in parts)
    if (origin or annotation) in _PATHS:
        return lambda value: isinstance(value, _PATHS[origin or annotation]) and _is_path(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda value: isinstance(value, Mapping)
    if origin is Callable or annotation is Callable:
        return callable
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        places = [_check(part) for part in inner]
        return lambda value: _is_sequence(value, _anything) and _is_tuple(value, places)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        element = _check(inner[0]) if inner else _anything
        return lambda value: _is_sequence(value, element)
    owner = origin or annotation
    if not isinstance(owner, type) or getattr(owner, "_is_protocol", False):
        return _anything
    return lambda value: isinstance(value, owner)


def _anything(_: Any) -> bool:
    return True


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | int) or type(value).__name__ in ("bool", "bool_", "SymBool")


def _is_int(value: Any) -> bool:
    is_number = hasattr(type(value), "__index__") and _is_one_number(value)
    return is_number and not _is_too_long(value)


def _is_too_long(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > _MOST_BITS


def _is_float(value: Any) -> bool:
    is_number = hasattr(type(value), "__float__") and _is_one_number(value)
    return (is_number and not _is_too_long(value)) or _is_int(value)


def _is_one_number(value: Any) -> bool:
    if _is_tensor(value):
        import torch

        return not value.is_meta and value.layout is torch.strided and value.numel() == 1
    return getattr(value, "size", 1) == 1 if hasattr(value, "dtype") else True


def _is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    torch = sys.modules.get("torch")  # not imported, so there are no instances
    return torch is not None and isinstance(value, torch.Tensor)


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    try:
        return b"\0" not in os.fsencode(value)
    except (TypeError, UnicodeError):
        return False


def _is_sequence(value: Any, element: Check) -> bool:
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__iter__"):
        return False
    if getattr(value, "ndim", 1) == 0:
        return False
    if _is_tensor(value):  # all elements have one type
        return element(_number())
    # An iterator must not be consumed here.
    return not isinstance(value, Collection) or all(
        map(element, itertools.islice(value, _LOOKED_AT))
    )


def _is_tuple(value: Any, places: list[Check]) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == len(places)
        and all(place(one) for place, one in zip(places, value, strict=True))
    )


_OF_TYPE: dict[Any, Check] = {
    Any: _anything,
    object: _anything,
    inspect.Parameter.empty: _anything,
    bool: _is_bool,
    int: _is_int,
    float: _is_float,
}
_PATHS: dict[Any, type] = {Path: Path, os.PathLike: os.PathLike}


def _subject(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _annotation(signature: inspect.Signature, name: str) -> str:
    annotation = signature.parameters[name].annotation
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _shown(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor of {tuple(value.shape)}, {value.dtype}, on {value.device}"
    kind = type(value).__name__
    if _is_too_long(value):
        return f"{kind} of {value.bit_length()} bits"
    shown = ascii(value) if isinstance(value, str | bytes | int | float) else ""
    if isinstance(value, list | tuple | Mapping):
        kind += f" of {len(value)}"
    return shown if shown and len(shown) < 80 else kind
