"""The ops of random graphs, each with a function that draws a call for existing values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from npu_compiler.fuzz.graph import CREATING, Mark, Ref

__all__ = ["EXACT", "EXACT_ONLY", "OPS", "Draft", "Misfit", "Values", "Vocable"]

# Exact values give exact results: no rounding on any path.
EXACT = "exact"
# The result is discontinuous (a comparison, a floor), so operands must be exact.
EXACT_ONLY = "exact only"

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, *_HALVES, torch.float64)
_SCALARS = (2, 0.5, -1, 3, -2.5, 0, 1.0)


class Misfit(Exception):
    """Raised if a call does not fit the existing values."""


class Values:
    """The interface of the values drawn so far."""

    tensors: list[Any]

    def choose(self, options: Sequence[Any]) -> Any:
        """Chooses one of these."""
        raise NotImplementedError

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda tensor: True) -> int:
        """Like find; raises Misfit if no tensor fits."""
        index = self.find(fits)
        if index is None:
            raise Misfit
        return index

    def find(self, fits: Callable[[torch.Tensor], bool]) -> int | None:
        """Returns the number of a tensor that fits, preferring later ones, or None."""
        found = [
            index
            for index, tensor in enumerate(self.tensors)
            if isinstance(tensor, torch.Tensor) and fits(tensor)
        ]
        return self.choose([*found, *found[-3:], *found[-1:]]) if found else None

    def tensor(self, index: int) -> torch.Tensor:
        """Returns a tensor by number."""
        found: torch.Tensor = self.tensors[index]
        return found

    def axis(self, index: int) -> int:
        """Draws an axis of a tensor, counted from either end."""
        rank = self.tensor(index).dim()
        return int(self.choose(range(-rank, rank))) if rank else 0


@dataclass(frozen=True)
class Draft:
    """A call that may fit."""

    target: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)


Drafter = Callable[[Values], Draft]


@dataclass(frozen=True)
class Vocable:
    """One op, or one form of its call."""

    name: str
    draft: Drafter
    traits: frozenset[str] = frozenset()


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _FLOATS


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def _is_bool(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.bool


def _any(tensor: torch.Tensor) -> bool:
    return True


def _unary(target: str, fits: Any = _is_float, **keywords: Any) -> Drafter:
    def draft(values: Values) -> Draft:
        index = values.pick(fits)
        chosen = {k: values.choose(v) if isinstance(v, tuple) else v for k, v in keywords.items()}
        return Draft(target, (Ref(index),), chosen)

    return draft


def _binary(target: str, fits: Any = _any, same: bool = False) -> Drafter:
    """Draws two tensors that broadcast, or a tensor and a number."""

    def draft(values: Values) -> Draft:
        left = values.pick(fits)
        if not same and values.choose((False, False, False, True)):
            number = values.choose(_SCALARS)
            if not values.tensor(left).is_floating_point():
                number = int(number)
            return Draft(target, (Ref(left), number))
        right = values.pick(
            lambda tensor: bool(fits(tensor)) and _broadcasts(values.tensor(left), tensor)
        )
        return Draft(target, (Ref(left), Ref(right)))

    return draft


def _broadcasts(left: torch.Tensor, right: torch.Tensor) -> bool:
    pairs = zip(reversed(left.shape), reversed(right.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _written(target: str, fits: Any = _any, value: Any = None) -> Drafter:
    """Draws an in-place method with a tensor that broadcasts, or a number."""

    def draft(values: Values) -> Draft:
        left = values.pick(fits)
        if value is not None:
            return Draft(target, (Ref(left), *value))
        own = values.tensor(left)
        right = values.pick(
            lambda tensor: _broadcasts(own, tensor) and (own * tensor).shape == own.shape
        )
        return Draft(target, (Ref(left), Ref(right)))

    return draft


def _reduced(target: str, fits: Any = _is_float, **more: Any) -> Drafter:
    def draft(values: Values) -> Draft:
        index = values.pick(lambda tensor: bool(fits(tensor)) and tensor.dim() > 0)
        keywords: dict[str, Any] = {"dim": values.axis(index), **more}
        keywords["keepdim"] = values.choose((False, True))
        return Draft(target, (Ref(index),), keywords)

    return draft


def _along(target: str, fits: Any = _is_float, *extra: Any, **keywords: Any) -> Drafter:
    """Draws a call along one axis that keeps the shape, such as softmax."""

    def draft(values: Values) -> Draft:
        index = values.pick(lambda tensor: bool(fits(tensor)) and tensor.dim() > 0)
        return Draft(target, (Ref(index), *extra), {"dim": values.axis(index), **keywords})

    return draft


def _of_rank(ranks: Sequence[int]) -> Callable[[torch.Tensor], bool]:
    return lambda tensor: tensor.dim() in ranks


# Views and rearrangements


def _reshape(values: Values) -> Draft:
    index = values.pick()
    count = values.tensor(index).numel()
    first = values.choose([size for size in range(1, count + 1) if count % size == 0])
    sizes = values.choose([(count,), (first, count // first), (first, -1), (1, count)])
    return Draft("torch.reshape", (Ref(index), sizes))


def _view(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.is_contiguous() and tensor.dim() > 1)
    shape = tuple(values.tensor(index).shape)
    sizes = (shape[0] * shape[1], *shape[2:])
    return Draft("method.view", (Ref(index), sizes))


def _permute(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.dim() > 1)
    rank = values.tensor(index).dim()
    shift = values.choose(range(1, rank))
    order = [(axis + shift) % rank for axis in range(rank)]
    return Draft("torch.permute", (Ref(index), order))


def _two_axes(target: str) -> Drafter:
    def draft(values: Values) -> Draft:
        index = values.pick(lambda tensor: tensor.dim() > 1)
        return Draft(target, (Ref(index), values.axis(index), values.axis(index)))

    return draft


def _unsqueeze(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.dim() < 4)
    return Draft("torch.unsqueeze", (Ref(index), values.choose((0, -1))))


def _expand(values: Values) -> Draft:
    index = values.pick(lambda tensor: 1 in tensor.shape)
    wide = [3 if size == 1 else size for size in values.tensor(index).shape]
    return Draft("method.expand", (Ref(index), values.choose((wide, [2, *wide]))))


def _select(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.dim() > 0)
    axis = values.axis(index)
    return Draft("torch.select", (Ref(index), axis, values.choose((0, -1))))


def _slice(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.dim() > 0)
    options = ((1, None, None), (None, -1, None), (None, None, 2), (-2, None, None), (0, 2, None))
    chosen = [Mark("slice", list(values.choose(options)))]
    if values.tensor(index).dim() > 1 and values.choose((False, True)):
        chosen.insert(0, Mark("slice", [None, None, None]))
    return Draft("operator.getitem", (Ref(index), tuple(chosen)))


def _parts(target: str, *extra: Any) -> Drafter:
    """Draws a call with several results."""

    def draft(values: Values) -> Draft:
        index = values.pick(lambda tensor: tensor.dim() > 0)
        return Draft(target, (Ref(index), *extra), {"dim": values.axis(index)})

    return draft


def _repeat(values: Values) -> Draft:
    index = values.pick(lambda tensor: 0 < tensor.dim() < 4)
    times = [values.choose((1, 2)) for _ in range(values.tensor(index).dim())]
    return Draft("method.repeat", (Ref(index), values.choose((times, [2, *times]))))


def _joined(target: str) -> Drafter:
    def draft(values: Values) -> Draft:
        first = values.pick(lambda tensor: tensor.dim() > 0)
        shape = values.tensor(first).shape
        second = values.pick(lambda tensor: tensor.shape == shape)
        third = values.pick(lambda tensor: tensor.shape == shape)
        listed = [Ref(first), Ref(second), Ref(third)][: values.choose((2, 3))]
        return Draft(target, (listed,), {"dim": values.axis(first)})

    return draft


def _flip(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.dim() > 0)
    return Draft("torch.flip", (Ref(index), [values.axis(index)]))


def _roll(values: Values) -> Draft:
    index = values.pick(lambda tensor: tensor.dim() > 0)
    return Draft("torch.roll", (Ref(index), values.choose((1, -1, 2)), values.axis(index)))


def _pad(mode: str) -> Drafter:
    def draft(values: Values) -> Draft:
        ranks = (1, 2, 3, 4) if mode == "constant" else (3,)
        index = values.pick(lambda tensor: tensor.dim() in ranks)
        sizes = [values.choose((0, 1, 2) if mode == "constant" else (0, 1)) for _ in range(2)]
        return Draft("F.pad", (Ref(index), sizes), {"mode": mode})

    return draft


# Products


def _product(target: str, ranks: Sequence[tuple[int, int]]) -> Drafter:
    def draft(values: Values) -> Draft:
        wanted = values.choose(ranks)
        left = values.pick(lambda tensor: _is_float(tensor) and tensor.dim() == wanted[0])
        own = values.tensor(left)

        def fits(tensor: torch.Tensor) -> bool:
            depth = tensor.shape[-2] if tensor.dim() > 1 else tensor.shape[0]
            return tensor.dtype == own.dtype and depth == own.shape[-1]

        right = values.pick(lambda tensor: tensor.dim() == wanted[1] and fits(tensor))
        return Draft(target, (Ref(left), Ref(right)))

    return draft


def _linear(values: Values) -> Draft:
    left = values.pick(lambda tensor: _is_float(tensor) and tensor.dim() > 0)
    own = values.tensor(left)
    right = values.pick(
        lambda t: t.dtype == own.dtype and t.dim() == 2 and t.shape[1] == own.shape[-1]
    )
    wide = values.tensor(right).shape[0]
    bias = values.find(lambda t: t.dtype == own.dtype and t.shape == (wide,))
    given = (Ref(left), Ref(right)) if bias is None else (Ref(left), Ref(right), Ref(bias))
    return Draft("F.linear", given)


def _attention(values: Values) -> Draft:
    query = values.pick(lambda tensor: _is_float(tensor) and tensor.dim() == 4)
    own = values.tensor(query)
    other = values.pick(lambda tensor: tensor.shape == own.shape and tensor.dtype == own.dtype)
    return Draft(
        "F.scaled_dot_product_attention",
        (Ref(query), Ref(other), Ref(query)),
        {"is_causal": values.choose((False, True))},
    )


def _convolution(target: str, rank: int) -> Drafter:
    def draft(values: Values) -> Draft:
        index = values.pick(lambda tensor: _is_float(tensor) and tensor.dim() == rank)
        own = values.tensor(index)
        axis = 0 if "transpose" in target else 1

        def fits(tensor: torch.Tensor) -> bool:
            is_small = all(k <= n for k, n in zip(tensor.shape[2:], own.shape[2:], strict=False))
            return tensor.dtype == own.dtype and tensor.shape[axis] == own.shape[1] and is_small

        weight = values.pick(lambda tensor: tensor.dim() == rank and fits(tensor))
        return Draft(
            target,
            (Ref(index), Ref(weight)),
            {"stride": values.choose((1, 2)), "padding": values.choose((0, 1))},
        )

    return draft


# Norms, pooling, interpolation


def _layer_norm(target: str) -> Drafter:
    def draft(values: Values) -> Draft:
        index = values.pick(lambda t: _is_float(t) and t.dim() > 0 and t.shape[-1] > 1)
        own = values.tensor(index)
        weight = values.find(lambda t: t.dtype == own.dtype and t.shape == own.shape[-1:])
        given = (Ref(index), [own.shape[-1]])
        # Not next to 0: norms over equal elements divide by it.
        return Draft(target, given if weight is None else (*given, Ref(weight)), {"eps": 0.1})

    return draft


def _group_norm(values: Values) -> Draft:
    index = values.pick(lambda t: _is_float(t) and t.dim() > 2)
    channels = values.tensor(index).shape[1]
    groups = values.choose([count for count in (1, 2, 3, 4) if channels % count == 0])
    return Draft("F.group_norm", (Ref(index), groups), {"eps": 0.1})


def _pool(target: str, **keywords: Any) -> Drafter:
    def draft(values: Values) -> Draft:
        index = values.pick(lambda t: _is_float(t) and t.dim() == 4)
        chosen = {k: values.choose(v) if isinstance(v, tuple) else v for k, v in keywords.items()}
        return Draft(target, (Ref(index),), chosen)

    return draft


# Indices


def _index_select(values: Values) -> Draft:
    index = values.find(lambda tensor: tensor.dim() > 0)
    where = values.find(_is_indices)
    if index is None or where is None or values.tensor(where).dim() != 1:
        raise Misfit
    axis = values.axis(index)
    if values.tensor(index).shape[axis] < 2:
        raise Misfit
    return Draft("torch.index_select", (Ref(index), axis, Ref(where)))


def _is_indices(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.int64 and bool(((tensor == 0) | (tensor == 1)).all())


def _embedding(values: Values) -> Draft:
    where = values.find(_is_indices)
    table = values.find(lambda t: _is_float(t) and t.dim() == 2 and t.shape[0] > 1)
    if where is None or table is None:
        raise Misfit
    return Draft("F.embedding", (Ref(where), Ref(table)))


def _by_tensor(values: Values) -> Draft:
    """Draws x[i], x[:, i] or x[i, i]; AOTAutograd rejects indices of rank 0."""
    where = values.find(lambda tensor: _is_indices(tensor) and tensor.dim() > 0)
    index = values.find(lambda tensor: tensor.dim() > 1 and min(tensor.shape[:2]) > 1)
    if where is None or index is None:
        raise Misfit
    everything = Mark("slice", [None, None, None])
    forms = [(Ref(where),), (everything, Ref(where)), (Ref(where), Ref(where))]
    return Draft("operator.getitem", (Ref(index), values.choose(forms)))


def _gather(values: Values) -> Draft:
    where = values.pick(lambda tensor: _is_indices(tensor) and tensor.dim() > 0)
    shape = values.tensor(where).shape

    def fits(tensor: torch.Tensor) -> bool:
        if tensor.dim() != len(shape):
            return False
        return all(n > 1 and n >= size for n, size in zip(tensor.shape, shape, strict=True))

    index = values.pick(fits)
    return Draft("torch.gather", (Ref(index), values.axis(index), Ref(where)))


def _where(values: Values) -> Draft:
    mask = values.pick(_is_bool)
    left = values.pick(lambda tensor: _broadcasts(values.tensor(mask), tensor))
    own = values.tensor(mask).to(torch.float32) + values.tensor(left).to(torch.float32)
    right = values.pick(lambda tensor: _broadcasts(own, tensor))
    return Draft("torch.where", (Ref(mask), Ref(left), Ref(right)))


def _masked_fill(target: str) -> Drafter:
    def draft(values: Values) -> Draft:
        mask = values.pick(_is_bool)
        own = values.tensor(mask)
        index = values.pick(lambda t: _broadcasts(own, t) and not _is_bool(t))
        return Draft(target, (Ref(index), Ref(mask), values.choose((0, 3, -2))))

    return draft


# Creation and casts


def _created(target: str) -> Drafter:
    def draft(values: Values) -> Draft:
        sizes = values.choose(((2, 3), (4,), (2, 3, 4), ()))
        dtype = Mark("dtype", values.choose(("float32", "float16", "int64", "bool")))
        if target == "torch.arange":
            return Draft(target, (values.choose((4, 6)),), {"dtype": _not_bool(dtype)})
        if target == "torch.full":
            return Draft(target, (sizes, values.choose((0, 1, 2))), {"dtype": dtype})
        return Draft(target, (sizes,), {"dtype": dtype})

    return draft


def _not_bool(dtype: Mark) -> Mark:
    return Mark("dtype", "float32") if dtype.content == "bool" else dtype


def _cast(values: Values) -> Draft:
    index = values.pick()
    names = ("float32", "float32", "float16", "bfloat16", "int64", "int32", "bool", "float64")
    return Draft("method.to", (Ref(index), Mark("dtype", values.choose(names))))


def _like(target: str, *extra: Any) -> Drafter:
    def draft(values: Values) -> Draft:
        return Draft(target, (Ref(values.pick()), *extra))

    return draft


def _rows(drafts: dict[str, Drafter], *traits: str) -> Iterator[Vocable]:
    for name, draft in drafts.items():
        yield Vocable(name, draft, frozenset(traits))


_SMOOTH = (
    "torch.sigmoid", "torch.tanh", "torch.sin", "torch.cos", "torch.erf", "torch.atan",
    "torch.asinh", "F.silu", "F.softplus", "F.mish", "F.elu", "F.selu", "F.hardswish",
    "F.hardsigmoid", "F.logsigmoid", "F.softsign", "F.tanhshrink", "torch.square", "torch.exp",
    "torch.expm1", "torch.log1p", "torch.sqrt", "torch.rsqrt", "torch.log", "torch.reciprocal",
    "torch.exp2", "torch.sinc",
)  # fmt: skip
_KEEPING = ("torch.abs", "torch.neg", "F.relu", "F.relu6", "torch.clone", "method.contiguous")
_JUMPS = ("torch.floor", "torch.ceil", "torch.round", "torch.trunc", "torch.sign", "torch.isnan")
_COMPARISONS = ("torch.eq", "torch.ne", "torch.lt", "torch.le", "torch.gt", "torch.ge")
_LOGIC = ("torch.logical_and", "torch.logical_or", "torch.logical_xor")
_BITS = ("torch.bitwise_and", "torch.bitwise_or", "torch.bitwise_xor")

OPS: tuple[Vocable, ...] = (
    *_rows({name: _unary(name) for name in _SMOOTH}),
    *_rows(
        {
            "gelu": _unary("F.gelu", approximate=("none", "tanh")),
            "leaky_relu": _unary("F.leaky_relu", negative_slope=(0.1, 0.3)),
            "div": _binary("torch.div", _is_float),
            "true_divide": _binary("operator.truediv"),
            "pow": _unary("torch.pow", exponent=(2, 3, 0.5)),
            "atan2": _binary("torch.atan2", _is_float, same=True),
            "mean": _reduced("torch.mean"),
            "var": _reduced("torch.var", correction=0),
            "std": _reduced("torch.std", correction=1),
            "logsumexp": _reduced("torch.logsumexp"),
            "norm": _reduced("torch.linalg.vector_norm"),
            "mean of all": _unary("torch.mean"),
            "softmax": _along("torch.softmax"),
            "log_softmax": _along("torch.log_softmax"),
            "mm": _product("torch.mm", [(2, 2)]),
            "bmm": _product("torch.bmm", [(3, 3)]),
            "matmul": _product("torch.matmul", [(2, 2), (3, 2), (1, 2), (2, 1), (4, 4), (3, 3)]),
            "linear": _linear,
            "attention": _attention,
            "conv1d": _convolution("F.conv1d", 3),
            "conv2d": _convolution("F.conv2d", 4),
            "conv_transpose2d": _convolution("F.conv_transpose2d", 4),
            "layer_norm": _layer_norm("F.layer_norm"),
            "rms_norm": _layer_norm("F.rms_norm"),
            "group_norm": _group_norm,
            "avg_pool2d": _pool(
                "F.avg_pool2d",
                kernel_size=(2, 3),
                stride=(1, 2),
                padding=(0, 1),
                count_include_pad=(True, False),
            ),
            "adaptive_avg_pool2d": _pool("F.adaptive_avg_pool2d", output_size=(1, 2, 3)),
            "interpolate": _pool(
                "F.interpolate", scale_factor=(2,), mode="bilinear", align_corners=(True, False)
            ),
            "add_": _written("method.add_", _is_float),
            "mul_": _written("method.mul_", _is_float),
            "tanh_": _written("method.tanh_", _is_float, value=()),
        }
    ),
    *_rows({name: _unary(name) for name in _KEEPING}, EXACT),
    *_rows(
        {
            "add": _binary("torch.add"),
            "sub": _binary("torch.sub", lambda tensor: not _is_bool(tensor)),
            "mul": _binary("torch.mul"),
            "maximum": _binary("torch.maximum", same=True),
            "minimum": _binary("torch.minimum", same=True),
            "rsub": _binary("torch.rsub", lambda tensor: not _is_bool(tensor)),
            "clamp": _unary("torch.clamp", _any, min=(-2, None, 0), max=(3, 4)),
            "sum": _reduced("torch.sum", _any),
            "sum of all": _unary("torch.sum", _any),
            "prod": _reduced("torch.prod", _is_integer),
            "amax": _reduced("torch.amax", _any),
            "amin": _reduced("torch.amin", _any),
            "cumsum": _along("torch.cumsum", _any),
            "any": _reduced("torch.any", _is_bool),
            "all": _reduced("torch.all", _is_bool),
            "reshape": _reshape,
            "view": _view,
            "permute": _permute,
            "transpose": _two_axes("torch.transpose"),
            "movedim": _two_axes("torch.movedim"),
            "unsqueeze": _unsqueeze,
            "squeeze": _unary("torch.squeeze", _any),
            "expand": _expand,
            "select": _select,
            "slice": _slice,
            "flatten": _unary("torch.flatten", _any),
            "chunk": _parts("torch.chunk", 2),
            "split": _parts("torch.split", 2),
            "unbind": _parts("torch.unbind"),
            "repeat": _repeat,
            "cat": _joined("torch.cat"),
            "stack": _joined("torch.stack"),
            "flip": _flip,
            "roll": _roll,
            "diagonal": _unary("torch.diagonal", _of_rank((2, 3))),
            "tril": _unary("torch.tril", _of_rank((2, 3)), diagonal=(0, 1, -1)),
            "triu": _unary("torch.triu", _of_rank((2, 3)), diagonal=(0, 1, -1)),
            "pad": _pad("constant"),
            "pad reflect": _pad("reflect"),
            "pad replicate": _pad("replicate"),
            "index_select": _index_select,
            "embedding": _embedding,
            "index": _by_tensor,
            "gather": _gather,
            "where": _where,
            "masked_fill": _masked_fill("torch.masked_fill"),
            "max_pool2d": _pool("F.max_pool2d", kernel_size=(2, 3), stride=(1, 2), padding=(0, 1)),
            "nearest": _pool("F.interpolate", scale_factor=(2,), mode="nearest"),
            "zeros_like": _like("torch.zeros_like"),
            "ones_like": _like("torch.ones_like"),
            "full_like": _like("torch.full_like", 2),
            **{name.removeprefix("torch."): _created(name) for name in CREATING},
            "fill_": _written("method.fill_", value=(1,)),
            "zero_": _written("method.zero_", value=()),
            "copy_": _written("method.copy_"),
            "relu_": _written("method.relu_", _is_float, value=()),
            "neg_": _written("method.neg_", _is_float, value=()),
            "masked_fill_": _masked_fill("method.masked_fill_"),
            "clamp_": _written("method.clamp_", _is_float, value=(-1, 2)),
        },
        EXACT,
    ),
    *_rows({name: _unary(name) for name in _JUMPS}, EXACT, EXACT_ONLY),
    *_rows({name: _binary(name) for name in _COMPARISONS}, EXACT, EXACT_ONLY),
    *_rows({name: _binary(name, same=True) for name in _LOGIC}, EXACT, EXACT_ONLY),
    *_rows({name: _binary(name, _is_integer, same=True) for name in _BITS}, EXACT),
    *_rows(
        {
            "cast": _cast,
            "logical_not": _unary("torch.logical_not", _any),
            "bitwise_not": _unary("torch.bitwise_not", lambda t: not t.is_floating_point()),
            "floor_divide": _binary("torch.floor_divide", _is_integer),
            "remainder": _binary("torch.remainder"),
            "fmod": _binary("torch.fmod"),
            "sort": _along("torch.sort", stable=True),  # torch's other sort is not stable
            "argmax": _reduced("torch.argmax", _is_float),
            "argmin": _reduced("torch.argmin", _is_float),
            "max with index": _reduced("torch.max", _is_float),
            "count_nonzero": _unary("torch.count_nonzero", _any),
        },
        EXACT,
        EXACT_ONLY,
    ),
)
