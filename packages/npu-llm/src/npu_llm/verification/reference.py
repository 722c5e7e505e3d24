"""Computes reference logits: runs a model in torch with its program's weights.

The parameters of a model being built have no memory behind them (npu_llm.checkpoint.streamed), and
a program may store them as integers. Each torch call gets the program's value of a parameter
instead, in float32, and releases it afterwards: the whole model in float32 is never in memory.

Results are written when the model is built, so that a program that is compiled later or on another
machine can be compared without weights.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from npu_compiler.quantize import QuantizedWeight
from npu_llm.cache_names import CACHES
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.progress import Advance, counted_modules

__all__ = [
    "CompressedWeights",
    "EagerWeights",
    "Integers",
    "Rounding",
    "TorchReference",
    "compute_reference",
    "make_reference",
    "read_reference",
]

# Calls that select elements of a weight: only these are converted.
_PICKS = frozenset({torch.nn.functional.embedding, torch.Tensor.__getitem__, torch.index_select})
_PRODUCTS = frozenset(
    {
        torch.nn.functional.linear,
        torch.nn.functional.scaled_dot_product_attention,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.bmm,
        torch.baddbmm,
        torch.addmm,
        torch.Tensor.baddbmm,
    }
)
# Products with a weight matrix: index of the argument with the rows, before the weight.
_ROWS: dict[Any, int] = {
    torch.nn.functional.linear: 0,
    torch.matmul: 0,
    torch.Tensor.matmul: 0,
    torch.Tensor.__matmul__: 0,
    torch.addmm: 1,
}
# Bits of float32's 23-bit mantissa that a value loses. float32 itself loses some here, to allow for
# sums in another order.
_DROPPED_BITS = {torch.float32: 2, torch.float16: 13, torch.bfloat16: 16}
# Elements of a weight that is multiplied as a whole, and of a part of a larger one.
_LARGEST_WHOLE = 1 << 24
_PIECE = 1 << 22
_SUMS = frozenset({torch.add, torch.Tensor.add, torch.Tensor.__add__})


class Integers(Protocol):
    """Parameters that a program stores as integers, and their values."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the values of a parameter's integers; None if it was not compressed."""

    def rows(self, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
        """Returns some rows of the result of `read` (*indices.shape, columns), or None."""


class CompressedWeights:
    """The integer weights of an openvino.Model, by the address of their source."""

    def __init__(self, model: Any) -> None:
        """Takes the model before its weights are compressed.

        Args:
            model: an openvino.Model with constants in the parameters' memory.
        """
        from npu_compiler.quantize.compress import weight_uses

        self._made_from = {
            uses.name: (int(uses.constant.get_tensor_view().data.ctypes.data), uses.is_transposed)
            for uses in weight_uses(model)
        }
        self._values: dict[int, tuple[Any, bool]] = {}

    def find(self, model: Any) -> None:
        """Finds the integers in the compressed model."""
        for node in model.get_ordered_ops():
            name, _, kind = str(node.get_friendly_name()).rpartition("/")
            if kind == "decompressed" and name in self._made_from:
                address, is_transposed = self._made_from[name]
                self._values[address] = (node, is_transposed)

    def quantized(self) -> dict[int, QuantizedWeight]:
        """Returns the integers (outputs, inputs) by the address of their source."""
        return {address: _quantized(node) for address, (node, _) in self._values.items()}

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the values of a parameter's integers; None if it was not compressed."""
        found = self._values.get(tensor.data_ptr())
        if found is None:
            return None
        node, is_transposed = found
        matrix = torch.from_numpy(_evaluate(node, slice(None)))
        return (matrix if is_transposed else matrix.t()).reshape(tensor.shape)

    def rows(self, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
        """Returns some rows of the result of `read`, reading only these, or None.

        Args:
            tensor: a parameter.
            indices: of any shape, int64.

        Returns:
            (*indices.shape, columns) float32.
        """
        node, is_transposed = self._values.get(tensor.data_ptr(), (None, False))
        if node is None or not is_transposed:
            return None
        values = torch.from_numpy(_evaluate(node, indices.reshape(-1).numpy()))
        return values.reshape(*indices.shape, -1)


@dataclass(frozen=True)
class Rounding:
    """The rounding of a device's arithmetic.

    Attributes:
        dtype: dtype to which products and sums are rounded.
        activation_group: number of inputs of a linear layer that share an 8-bit scale; 0 for none.
    """

    dtype: torch.dtype
    activation_group: int = 0

    def round(self, value: torch.Tensor) -> torch.Tensor:
        """Rounds a float32 tensor, in float32's range; others are unchanged."""
        if value.dtype is not torch.float32:
            return value
        dropped = _DROPPED_BITS[self.dtype]
        bits = value.contiguous().view(torch.int32) + (1 << (dropped - 1))
        return bits.bitwise_and_(-1 << dropped).view(torch.float32)

    def quantize(self, value: torch.Tensor) -> torch.Tensor:
        """Rounds the inputs of a linear layer (..., inputs) to 8 bits, with a scale per group."""
        size = self.activation_group
        if not size or value.shape[-1] % size:
            return value
        grouped = value.reshape(*value.shape[:-1], -1, size)
        scale = grouped.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return ((grouped / scale).round() * scale).reshape(value.shape)


class EagerWeights(TorchFunctionMode):
    """A context in which torch calls use a program's weights instead of parameters."""

    def __init__(
        self,
        weights: StreamedWeights,
        compressed: Integers | None = None,
        *,
        rounding: Rounding | None = None,
    ) -> None:
        """Stores the weights.

        Args:
            weights: the values of the parameters.
            compressed: parameters that the program stores as integers.
            rounding: rounding of weights and results; None for none.
        """
        super().__init__()
        self._weights = weights
        self._compressed = compressed
        self._rounding = rounding

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs a call with values instead of parameters."""
        named = dict(kwargs or {})
        if getattr(func, "__name__", "") == "__get__":
            found = func(*args, **named)
            if not isinstance(found, torch.Tensor):
                return found  # a shape or a dtype, without values
        rows = self._embedded(func, args)
        if rows is None and _is_large_product(func, args, named):
            rows = self._by_pieces(args[0], args[1])
        if rows is not None:
            return self._rounded(rows)
        # Selecting from another tensor remains a view, through which models write.
        is_pick = func in _PICKS and any(isinstance(arg, torch.nn.Parameter) for arg in args)
        args, named = pytree.tree_map_only(
            torch.nn.Parameter, self._stored if is_pick else self._value, (args, named)
        )
        rounding = self._rounding
        at = _ROWS.get(func)
        if rounding is not None and at is not None and args[at + 1].dim() == 2:
            args = (*args[:at], rounding.quantize(args[at]), *args[at + 1 :])
        result = func(*args, **named)
        if is_pick and isinstance(result, torch.Tensor) and result.is_floating_point():
            result = result.float()
        if rounding is not None and (is_pick or func in _PRODUCTS or func in _SUMS):
            result = pytree.tree_map(self._rounded, result)
        return result

    def _embedded(self, func: Callable[..., Any], args: tuple[Any, ...]) -> torch.Tensor | None:
        """Returns the rows of a compressed embedding for a call; None for other calls."""
        if self._compressed is None or func is not torch.nn.functional.embedding:
            return None
        return self._compressed.rows(args[1], args[0])

    def _by_pieces(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns a product with a large weight, converting one part at a time to float32."""
        rounding, products = self._rounding, []
        rows = rows if rounding is None else rounding.quantize(rows)
        whole: torch.Tensor | None = None
        count, size = weight.shape[0], max(_PIECE // weight.shape[1], 1)
        for first in range(0, count, size):
            chosen = torch.arange(first, min(first + size, count))
            part = None if self._compressed is None else self._compressed.rows(weight, chosen)
            if part is None:
                whole = self._stored(weight) if whole is None else whole
                part = whole[first : first + size]
            part = part.float()
            part = part if rounding is None else rounding.round(part)
            products.append(torch.nn.functional.linear(rows, part))
        return torch.cat(products, -1)

    def _stored(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns a parameter's values in their current dtype."""
        value = None if self._compressed is None else self._compressed.read(parameter)
        return self._weights.read(parameter.detach()) if value is None else value

    def _value(self, parameter: torch.Tensor) -> torch.Tensor:
        value = self._stored(parameter).float()
        return value if self._rounding is None else self._rounding.round(value)

    def _rounded(self, value: Any) -> Any:
        """Returns float tensors with the program's rounding, and others unchanged."""
        if self._rounding is None or not isinstance(value, torch.Tensor):
            return value
        return self._rounding.round(value)


def _is_large_product(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a call multiplies by a matrix without bias that is large in float32."""
    if func is not torch.nn.functional.linear or named or any(one is not None for one in args[2:]):
        return False
    return isinstance(args[1], torch.nn.Parameter) and args[1].numel() > _LARGEST_WHOLE


def _evaluate(node: Any, rows: Any) -> np.ndarray[Any, Any]:
    """Returns rows of a constant, or of a decompression subgraph on constants."""
    kind = node.get_type_name()
    if kind == "Constant":
        numbers: np.ndarray[Any, Any] = _numbers(node)[rows]
        return numbers
    first, *rest = (node.input_value(index).get_node() for index in range(node.get_input_size()))
    value = _evaluate(first, rows)
    if kind == "Convert":
        return value.astype(np.float32)
    if kind == "Reshape":
        return value.reshape(len(value), -1)
    assert kind in ("Subtract", "Multiply"), "decompression has no other calls"
    (other,) = (_evaluate(item, rows) for item in rest)
    combine = np.subtract if kind == "Subtract" else np.multiply
    combined: np.ndarray[Any, Any] = combine(value, other, out=value)
    return combined


def _quantized(node: Any) -> QuantizedWeight:
    """Returns the integers, scales and zero points of a decompressed matrix."""
    others: dict[str, Any] = {}
    while node.get_type_name() != "Constant":
        if node.get_type_name() in ("Multiply", "Subtract"):
            others[node.get_type_name()] = node.input_value(1).get_node()
        node = node.input_value(0).get_node()

    def grouped(numbers: Any) -> torch.Tensor:
        """Returns (outputs, groups, size) for one or several groups."""
        tensor = torch.tensor(np.asarray(numbers))
        return tensor if tensor.dim() == 3 else tensor[:, None]

    zero = others.get("Subtract")
    if zero is not None and zero.get_type_name() == "Convert":
        zero = zero.input_value(0).get_node()
    kind = node.get_output_element_type(0).get_type_name()
    return QuantizedWeight(
        values=grouped(_numbers(node)),
        scale=grouped(_numbers(others["Multiply"])),
        zero_point=None if zero is None else grouped(_numbers(zero)),
        bits=4 if kind in ("u4", "i4") else 8,
    )


def _numbers(constant: Any) -> np.ndarray[Any, Any]:
    kind = constant.get_output_element_type(0).get_type_name()
    if kind not in ("u4", "i4"):
        return np.asarray(constant.get_tensor_view().data)
    shape = tuple(constant.get_output_shape(0))
    # Two per byte, the first in the lower half.
    packed = np.asarray(constant.get_tensor_view().data).view(np.uint8).reshape(-1)
    nibbles = np.stack([packed & 0xF, packed >> 4], -1).reshape(-1)[: int(np.prod(shape))]
    if kind == "i4":
        nibbles = (nibbles ^ 8).astype(np.int8) - 8
    return nibbles.reshape(shape)


# Tokens after a first chunk with as many tokens as heads: three one by one, and three at once.
_REST = 6
_FEWEST = 9
_MOST_HEADS = 64
# Relative difference of results in another order that counts as rounding.
_NEAR = 1e-2


@dataclass(frozen=True)
class TorchReference:
    """A short sequence and its logits.

    Attributes:
        ids: (tokens,) int64.
        rows: indices of the tokens with known logits, ascending.
        logits: (rows, vocabulary) float32, by torch in float32 with the program's weights.
        rounded: the logits with the program's rounding, which show how the model amplifies rounding
            errors.
        heads: query heads of a layer.
        kv_heads: heads of keys and values.
        is_routed: whether tokens choose experts; rounding may then change the choice.
        precision: dtype to which `rounded` is rounded: float32, bfloat16 or float16.
        activation_group: number of inputs of a linear layer that share an 8-bit scale; 0 for float
            activations.
    """

    ids: torch.Tensor
    rows: tuple[int, ...]
    logits: torch.Tensor
    rounded: torch.Tensor
    heads: int
    kv_heads: int
    is_routed: bool
    precision: str
    activation_group: int = 0

    def with_more_rounding(self, factor: float, precision: str) -> TorchReference:
        """Returns a copy for another precision, with rounding errors scaled by a factor."""
        rounded = self.logits + factor * (self.rounded - self.logits)
        return replace(self, rounded=rounded, precision=precision)

    def write(self, path: Path) -> None:
        """Writes the reference, for `read_reference`."""
        about = {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "is_routed": self.is_routed,
            "precision": self.precision,
            "activation_group": self.activation_group,
        }
        tensors = {
            "ids": self.ids,
            "rows": torch.tensor(self.rows),
            "logits": self.logits,
            "rounded": self.rounded,
        }
        save_file(tensors, path, {"about": json.dumps(about)})


def read_reference(path: Path) -> TorchReference | None:
    """Reads a reference; returns None if there is none."""
    if not path.is_file():
        return None
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in ("ids", "rows", "logits", "rounded")}
    rows = tuple(tensors.pop("rows").tolist())
    return TorchReference(rows=rows, **tensors, **about)


def compute_reference(
    model: Any,
    weights: StreamedWeights,
    *,
    compressed: Integers | None,
    rounding: Rounding,
    context: int | None,
    has_states: bool = False,
    on_progress: Advance = lambda share, doing: None,
) -> TorchReference:
    """Runs a model in torch.

    Args:
        model: a decoder-only transformers model in float32, on cpu.
        weights: the values of its parameters.
        compressed: parameters that the program stores as integers.
        rounding: rounding of the program's arithmetic.
        context: the model's context in tokens; None if it sets no limit.
        has_states: whether it has recurrent states, which its code computes in another order token
            by token than for all tokens at once; the difference counts as rounding.
        on_progress: called with the share done, 0.0 to 1.0, and the current position.
    """
    config = model.config.get_text_config()

    def logits_of(ids: torch.Tensor, rows: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        def run(how: Rounding | None) -> torch.Tensor:
            real = EagerWeights(weights, compressed, rounding=how)
            with _experts_one_by_one(model), torch.no_grad(), real:
                return _logits(model, ids, rows)

        with counted_modules(model, on_progress, runs=2):
            logits, rounded = run(None), run(rounding)
        if has_states:
            with EagerWeights(weights, compressed, rounding=None), torch.no_grad():
                rounded = _farther(logits, rounded, _token_by_token(model, ids, rows))
        return logits, rounded

    heads = _heads(config)
    return make_reference(
        logits_of,
        vocabulary=int(config.vocab_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        is_routed=_is_routed(config),
        rounding=rounding,
        context=context,
    )


def make_reference(
    logits_of: LogitsOf,
    *,
    vocabulary: int,
    heads: int,
    kv_heads: int,
    is_routed: bool,
    rounding: Rounding,
    context: int | None,
) -> TorchReference:
    """Draws random tokens, and computes their logits.

    Args:
        logits_of: computes the logits (rows, vocabulary) of some tokens, in float32 and rounded.
        vocabulary: vocabulary size; token ids are below it.
        heads: see TorchReference, also for the next arguments.
        kv_heads: heads of keys and values.
        is_routed: whether tokens choose experts.
        rounding: rounding in the second result.
        context: the model's context in tokens; None if it sets no limit.
    """
    heads = min(heads, _MOST_HEADS)
    ids = _ids(vocabulary, heads, context)
    rows = _rows(len(ids), heads, kv_heads)
    logits, rounded = logits_of(ids, rows)
    return TorchReference(
        ids=ids,
        rows=rows,
        logits=logits,
        rounded=rounded,
        heads=heads,
        kv_heads=kv_heads,
        is_routed=is_routed,
        precision=str(rounding.dtype).removeprefix("torch."),
        activation_group=rounding.activation_group,
    )


# Computes exact and rounded logits of some of (tokens,) int64.
LogitsOf = Callable[[torch.Tensor, tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]]


def _heads(config: Any) -> int:
    for name in ("num_attention_heads", "n_head", "n_heads", "num_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads > 0:
            return heads
    return 1


def _ids(vocabulary: int, heads: int, context: int | None) -> torch.Tensor:
    """Returns tokens drawn from the whole vocabulary with a fixed seed."""
    count = max(heads + _REST, _FEWEST)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (min(count, context or count),), generator=generator)


def _rows(tokens: int, heads: int, kv_heads: int) -> tuple[int, ...]:
    """Returns the tokens with stored logits: the last one of each chunk that a check runs."""
    wanted = {0, *range(4, 8), kv_heads - 1, heads // 2, heads - 2, heads - 1}
    wanted |= set(range(heads, heads + _REST))
    return tuple(sorted(row for row in wanted if 0 <= row < tokens))


def _is_routed(config: Any) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)


def _logits(model: Any, ids: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
    """Returns the logits of some tokens: (rows, vocabulary) float32."""
    kept = torch.tensor(rows)
    arguments: dict[str, Any] = {"input_ids": ids[None], "use_cache": False, "return_dict": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        found = model(**arguments, logits_to_keep=kept).logits
    else:
        found = model(**arguments).logits[:, kept]
    logits: torch.Tensor = found[0].float().contiguous()
    return logits


def _token_by_token(model: Any, ids: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor | None:
    """Returns the result of _logits with the model's own cache; None if it does not return one."""
    cache: dict[str, Any] = {}
    logits: list[torch.Tensor] = []
    for token in ids:
        output = model(input_ids=token.view(1, 1), use_cache=True, return_dict=True, **cache)
        returned = {name: getattr(output, name, None) for name in CACHES}
        cache = {name: kept for name, kept in returned.items() if kept is not None}
        if not cache:
            return None
        logits.append(output.logits[0, -1].float())
    return torch.stack([logits[row] for row in rows])


def _farther(
    logits: torch.Tensor, rounded: torch.Tensor, other: torch.Tensor | None
) -> torch.Tensor:
    """Returns the result with the larger error, if the other one is close at all."""
    if other is None:
        return rounded
    distance = float((other - logits).norm())
    is_near = distance <= _NEAR * float(logits.norm())
    return other if is_near and distance > float((rounded - logits).norm()) else rounded


@contextmanager
def _experts_one_by_one(model: Any) -> Iterator[None]:
    """Makes experts run sequentially, so that their weights are not copied per token."""
    choose = getattr(model, "set_experts_implementation", None)
    if choose is None or not _is_routed(model.config.get_text_config()):
        yield
        return
    choose("eager")
    try:
        yield
    finally:
        choose("batched_mm")
