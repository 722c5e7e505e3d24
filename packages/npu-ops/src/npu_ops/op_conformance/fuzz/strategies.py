"""Strategies that draw calls of an op from its schema: mostly valid, some invalid.

Only the fuzzer's children import this module, and with it hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from npu_ops.op_conformance.fuzz.call import Call, Mark, TensorSpec

__all__ = ["calls"]

_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "complex32"),
    *("int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2"),
)
_LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "quint8", "qint8", "nested")
_SIZES = (2, 3, 1, 4, 0, 5, 7)
_HUGE = (2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
_WORDS = (
    *("none", "mean", "sum", "amax", "amin", "prod", "floor", "trunc", "linear", "lower", "fro"),
    *("nearest", "left", "right", "U", "L", "tanh", "reflect", "ij", "nonsense", "0", ""),
)
_INDEX_NAMES = ("ind", "offset", "target", "length", "_size", "batch_sizes", "pivots", "ptr")
# Dtype-like arguments by name; integer arguments by type.
_MARKS = {
    "dtype": tuple(Mark("dtype", name) for name in _DTYPES),
    "layout": tuple(Mark("layout", name) for name in ("strided", "sparse_coo", "sparse_csr")),
    "memory_format": tuple(
        Mark("memory_format", name)
        for name in ("contiguous_format", "channels_last", "preserve_format", "channels_last_3d")
    ),
}
_JUNK: tuple[Any, ...] = (
    None, "text", 1.5, [1], [], True, -1, 2**70, {"a": 1}, [None], TensorSpec((2,), storage=97),
    [TensorSpec((2,), storage=98), 3], Mark("device", "device"), Mark("dtype", "float32"),
)  # fmt: skip
_FLOATS = (0.0, 1.0, 0.5, -1.0, 2.5, 1e-5, 1e30, float("nan"), float("inf"), -float("inf"))


@dataclass(frozen=True)
class _Theme:
    """Properties shared by the tensors of a call."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    is_wild: bool


def _weighted(*choices: tuple[int, Any]) -> st.SearchStrategy[Any]:
    """Draws one of the values with the given weights."""
    return st.sampled_from([value for count, value in choices for _ in range(count)])


_ONE_IN_TWENTY = _weighted((19, False), (1, True))
_SIGNED = _weighted((6, 1), (5, 2), (5, 0), (3, -1), (3, 3), (1, -2), (1, 5), (1, -5), (1, 8))
_SHAPES = st.lists(st.sampled_from(_SIZES), min_size=0, max_size=5).map(tuple)
_THEMES = st.builds(
    _Theme,
    shape=st.one_of(
        st.sampled_from([(2, 3), (3,), (2, 3, 4), (1, 2, 4, 4), (2, 2), (4, 4), (1, 2, 3, 3, 3)]),
        _SHAPES,
        _weighted((6, (2, 4)), (1, (70_000,)), (1, (2, 40_000)), (1, (0, 2**40)), (1, (1,) * 20)),
    ),
    dtype=_weighted((10, "float32"), *((1, name) for name in _DTYPES)),
    layout=_weighted((50, "strided"), *((1, name) for name in _LAYOUTS)),
    is_wild=_weighted((3, False), (1, True)),
)


@st.composite
def calls(draw: st.DrawFn, op: str, schema: Any) -> Call:
    """Draws calls of an op.

    Args:
        draw: Hypothesis's.
        op: full name of the op, for example ``"aten::add.Tensor"``.
        schema: ``torch._C.FunctionSchema`` of the op.
    """
    theme = draw(_THEMES)
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for number, argument in enumerate(schema.arguments):
        # Without a device, aten uses the CPU, wherever the tensors are; torch's functions pass one.
        has_default = argument.has_default_value() and argument.name != "device"
        if has_default and draw(_weighted((2, True), (1, False))):
            if argument.kwarg_only:
                continue
            value = argument.default_value
        else:
            value = draw(_argument(argument, theme, number))
        if theme.is_wild and draw(_ONE_IN_TWENTY):
            value = draw(st.sampled_from(_JUNK))
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            arguments.append(value)
    return Call(op, arguments, keywords)


def _argument(argument: Any, theme: _Theme, number: int) -> st.SearchStrategy[Any]:
    kind = str(argument.type)
    name = argument.name
    if name == "pin_memory":
        return st.sampled_from([None, False])  # only for CPU memory
    is_optional = kind.startswith("Optional[")
    inner = kind.removeprefix("Optional[").removesuffix("]") if is_optional else kind
    if inner.startswith("List["):
        element = inner.removeprefix("List[").removesuffix("]")
        strategy = _list_of(_value(element, name, theme, number), name, theme)
    else:
        strategy = _value(inner, name, theme, number)
    return st.one_of(st.none(), strategy) if is_optional and inner != "Device" else strategy


def _list_of(
    element: st.SearchStrategy[Any], name: str, theme: _Theme
) -> st.SearchStrategy[list[Any]]:
    most = max(4, len(theme.shape))
    lists = st.lists(element, max_size=most)
    if "size" in name or "shape" in name:
        return st.one_of(st.just(list(theme.shape)), lists)
    return st.one_of(
        lists, element.map(lambda value: [value] * 2), element.map(lambda value: [value])
    )


def _value(kind: str, name: str, theme: _Theme, number: int) -> st.SearchStrategy[Any]:
    if name in _MARKS and kind == "int":
        return st.sampled_from(_MARKS[name])
    if kind == "Optional[Tensor]":
        return st.one_of(st.none(), _tensors(name, theme, number))
    if kind == "Tensor":
        return _tensors(name, theme, number)
    return _PLAIN[kind](theme)


def _integers(theme: _Theme) -> st.SearchStrategy[int]:
    if not theme.is_wild:
        return _SIGNED
    return st.one_of(_SIGNED, _SIGNED, st.sampled_from(_HUGE), st.integers(-200, 200))


def _numbers(theme: _Theme) -> st.SearchStrategy[Any]:
    imaginary = st.just(Mark("complex", [0.5, -1.0]))
    return st.one_of(_integers(theme), st.sampled_from(_FLOATS), st.booleans(), imaginary)


_PLAIN: dict[str, Callable[[_Theme], st.SearchStrategy[Any]]] = {
    "int": _integers,
    "number": _numbers,
    "bool": lambda _: st.booleans(),
    "float": lambda theme: st.one_of(
        st.sampled_from(_FLOATS), st.floats(width=32) if theme.is_wild else st.floats(0, 1)
    ),
    "str": lambda _: st.sampled_from(_WORDS),
    "Device": lambda _: _weighted(
        (8, Mark("device", "device")), (1, Mark("device", "cpu")), (1, Mark("device", "meta"))
    ),
    "Generator": lambda _: _weighted(
        (8, Mark("generator", "device")), (1, Mark("generator", "cpu"))
    ),
    "Storage": lambda _: st.sampled_from([Mark("storage", size) for size in (64, 0, 7, 256)]),
}


@st.composite
def _tensors(draw: st.DrawFn, name: str, theme: _Theme, number: int) -> TensorSpec:
    is_index = any(part in name for part in _INDEX_NAMES)
    shape = draw(_shape_like(theme.shape))
    dtype = draw(_weighted((12, theme.dtype), (1, ""))) or draw(st.sampled_from(_DTYPES))
    if is_index:
        dtype = draw(_weighted((8, "int64"), (2, "int32"), (1, dtype)))
    elif "mask" in name:
        dtype = draw(_weighted((4, "bool"), (1, "uint8"), (2, dtype)))
    plain = draw(_weighted((4, True), (1, False)))
    fill = (
        "small"
        if is_index and draw(_weighted((4, True), (1, False)))
        else draw(
            _weighted((6, "normal"), (2, "small"), (1, "signed"), (1, "special"), (1, "zeros"))
        )
    )
    layout = theme.layout if number == 0 or draw(st.booleans()) else "strided"
    strides, offset = (None, 0) if plain else draw(_geometry(shape))
    return TensorSpec(
        shape=shape,
        strides=strides,
        offset=offset,
        dtype=dtype,
        fill=fill,
        layout=layout,
        view="" if plain else draw(_weighted((6, ""), (1, "conj"), (1, "neg"))),
        storage=draw(_weighted((12, number), (1, 0))),
        place="device"
        if not theme.is_wild
        else draw(_weighted((24, "device"), (1, "cpu"), (1, "meta"))),
        requires_grad=draw(_ONE_IN_TWENTY),
    )


def _shape_like(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    kin = [
        shape[:-2] + shape[-2:][::-1],
        shape[1:],
        shape[:1],
        shape[-1:],
        shape[:-1] + (1,) * bool(shape),
        (1, *shape),
        (),
        (0,),
        shape[1:2],
    ]
    # mypy cannot infer that a star in a tuple of choices gives a tuple of pairs.
    near: Sequence[tuple[int, Any]] = [(1, each) for each in kin]
    return st.one_of(
        _weighted((3 * len(kin), shape), *near),
        _weighted((20, shape), (1, (3, 5)), (1, (2, 3, 4))),
    )


@st.composite
def _geometry(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...] | None, int]:
    """Draws strides and offset: transposed, expanded, overlapping, with gaps; bounded in memory."""
    order = draw(st.permutations(range(len(shape))))
    kind = draw(st.sampled_from(["transposed", "gaps", "expanded", "overlapping"]))
    strides = [0] * len(shape)
    step = 1 + draw(st.integers(0, 1)) if kind == "gaps" else 1
    for dim in order:
        strides[dim] = step
        step *= max(1, shape[dim])
    if kind == "overlapping":
        strides = [1] * len(shape)
    elif kind == "expanded" and shape:
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    if max(shape, default=0) > 1_000_000:
        return None, 0
    return tuple(strides), draw(st.sampled_from([0, 0, 1, 3]))
