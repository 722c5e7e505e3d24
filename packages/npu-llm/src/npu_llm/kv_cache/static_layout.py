"""Memory layout of the static pipeline's caches, and sizes of its programs.

Caches of the same shape share one tensor, so one copy writes a step's output to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from npu_llm.errors import ContextError

if TYPE_CHECKING:
    import torch

__all__ = [
    "HOST_INPUTS",
    "KEY_POSITIONS",
    "LONGEST",
    "LOOPED",
    "TOKEN_MASK",
    "CacheGroup",
    "EmbeddingTable",
    "StaticLayout",
    "StaticSizes",
    "StepSizes",
]

# Inputs that transformers' models do not have: each slot's position, and, for a model with states,
# which rows have valid tokens.
KEY_POSITIONS, TOKEN_MASK = "key_positions", "token_mask"
# Computations that depend only on these run on the host, see npu_llm.kv_cache.host_inputs.
HOST_INPUTS = ("attention_mask", "position_ids", "logits_to_keep", KEY_POSITIONS, TOKEN_MASK)

# Slots of the largest cache for a model without a limit.
LONGEST = 4096
# Maximum tokens of a program with token loops: an NPU's compiler unrolls them.
LOOPED = 16


@dataclass(frozen=True)
class StepSizes:
    """The fixed sizes of a program.

    Attributes:
        tokens: new tokens, including padding.
        capacity: slots for past tokens.
        kept: number of tokens with returned logits.
    """

    tokens: int
    capacity: int
    kept: int

    def __str__(self) -> str:
        return f"{self.tokens}x{self.capacity}x{self.kept}"


@dataclass(frozen=True)
class CacheGroup:
    """Caches of one shape.

    Attributes:
        ports: names of their program inputs, in order.
        heads: heads per cache.
        size: elements per head and token.
        is_transposed: whether a cache is (heads, size, capacity) instead of (heads, capacity,
            size).
    """

    ports: tuple[str, ...]
    heads: int
    size: int
    is_transposed: bool

    def shape(self, capacity: int) -> tuple[int, ...]:
        """Returns the shape of the group's memory: the number of caches, then a cache's shape."""
        last = (self.size, capacity) if self.is_transposed else (capacity, self.size)
        return (len(self.ports), self.heads, *last)

    def slots(self, memory: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Returns a view of some slots: (caches, heads, slots, size)."""
        if self.is_transposed:
            return memory[..., first:last].transpose(-1, -2)
        return memory[:, :, first:last]


@dataclass(frozen=True)
class EmbeddingTable:
    """A table of embeddings that the host looks up for a program's tokens.

    Attributes:
        rows: name of its tensor among the program's weights.
        size: elements per row.
    """

    rows: str
    size: int


@dataclass(frozen=True)
class StaticLayout:
    """A step's inputs besides its caches, and its caches in groups.

    Attributes:
        inputs: names of the inputs besides the caches.
        groups: the caches, grouped by shape.
        dtype: name of the caches' torch dtype.
        given: shapes of inputs that are neither tokens nor caches, such as a decoder's encoder
            outputs.
        forms: shapes of token inputs that differ from a language model's. "tokens" is the number of
            new ones, "whole" that of slots and new ones.
        states: recurrent states, which are the last inputs: sizes of a row by name, float32.
        most_tokens: new tokens of the longest program; None for no limit.
        tables: embeddings by the inputs that take the tokens' rows.
        is_specialized: whether each program is rewritten for its sizes, see
            npu_llm.models.specialize.
        starts_empty: whether a prompt's first tokens run in a program without slots.

    The program's outputs are the logits, then a step's addition to each group: (caches, heads,
    tokens, size) float32, then the new states.
    """

    inputs: tuple[str, ...]
    groups: tuple[CacheGroup, ...]
    dtype: str = "float32"
    given: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forms: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    states: Mapping[str, Sequence[int]] = field(default_factory=dict)
    most_tokens: int | None = None
    tables: Mapping[str, EmbeddingTable] = field(default_factory=dict)
    is_specialized: bool = False
    starts_empty: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        """The storage dtype of the caches."""
        import torch  # imported late: callers that need only sizes do not load torch

        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    def port_shapes(self, sizes: StepSizes) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each input for these sizes."""
        numbers = {"tokens": sizes.tokens, "whole": sizes.capacity + sizes.tokens}
        known: dict[str, Sequence[int | str]] = {
            "input_ids": (1, "tokens"),
            "attention_mask": (1, "whole"),
            "position_ids": (1, "tokens"),
            "logits_to_keep": (sizes.kept,),
            KEY_POSITIONS: ("whole",),
            TOKEN_MASK: (1, "tokens"),
            **self.given,
            **self.forms,
        }
        shapes = {
            name: tuple(numbers[one] if isinstance(one, str) else one for one in known[name])
            for name in self.inputs
        }
        for group in self.groups:
            shapes |= dict.fromkeys(group.ports, (1, *group.shape(sizes.capacity)[1:]))
        shapes |= {name: (1, sizes.tokens, table.size) for name, table in self.tables.items()}
        return shapes | {name: (1, *one) for name, one in self.states.items()}

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in the caches of all layers."""
        counts = (len(group.ports) * group.heads * group.size for group in self.groups)
        return self.torch_dtype.itemsize * sum(counts)

    def as_dict(self) -> dict[str, Any]:
        """Returns the attributes for JSON, except `given`."""
        return {name: value for name, value in asdict(self).items() if name != "given"}

    @staticmethod
    def from_dict(known: Mapping[str, Any]) -> StaticLayout:
        """Returns the layout for a result of as_dict."""
        groups = (
            CacheGroup(tuple(group["ports"]), group["heads"], group["size"], group["is_transposed"])
            for group in known["groups"]
        )
        return StaticLayout(
            tuple(known["inputs"]),
            tuple(groups),
            known["dtype"],
            forms=known.get("forms", {}),
            states=known.get("states", {}),
            most_tokens=known.get("most_tokens"),
            tables={
                name: EmbeddingTable(**table) for name, table in known.get("tables", {}).items()
            },
            is_specialized=known.get("is_specialized", False),
            starts_empty=known.get("starts_empty", False),
        )


class StaticSizes:
    """The sizes of a model's programs.

    Attributes:
        chunks: new tokens per program, ascending; the first is 1.
        capacities: slots of a cache, ascending; only 0 for programs without slots.
    """

    def __init__(
        self,
        limit: int | None,
        *,
        chunks: Sequence[int] = (1, 16, 128),
        smallest: int = 256,
        positions: int | None = None,
        most_tokens: int | None = None,
    ) -> None:
        """Doubles the capacity from the smallest up to the limit.

        Args:
            limit: the context in tokens; None for programs without slots, which have no limit.
            chunks: new tokens per program.
            smallest: the first capacity.
            positions: number of positions for tokens and padding; None for no limit.
            most_tokens: maximum chunk size; None for no limit.
        """
        self.chunks = tuple(one for one in chunks if most_tokens is None or one <= most_tokens)
        self._positions = positions
        self._has_slots = limit is not None
        if limit is None:
            self.capacities: tuple[int, ...] = (0,)
            return
        doubled = []
        capacity = smallest
        while capacity < limit:
            doubled.append(capacity)
            capacity = 2 * capacity + capacity % 2  # an odd one stays just below an even one
        self.capacities = (*doubled, limit)

    def programs(self, context: int, layout: StaticLayout) -> Iterator[StepSizes]:
        """Yields the sizes of the programs that a generation up to a context runs.

        Args:
            context: tokens of prompt and answer.
            layout: ports of the programs.
        """
        bound = self.capacity(min(context, self.capacities[-1]))
        for capacity in (one for one in self.capacities if one <= bound):
            for tokens in self.chunks:
                kept = 1 if "logits_to_keep" in layout.inputs else tokens
                if layout.starts_empty and tokens > 1 and capacity == self.capacities[0]:
                    yield StepSizes(tokens, 0, kept)
                yield StepSizes(tokens, capacity, kept)

    def chunk(self, tokens: int, past: int = 0) -> int:
        """Returns the chunk size of the next program.

        Args:
            tokens: number of tokens left.
            past: number of tokens read; padding needs positions as well.
        """
        bound = self._positions
        fitting = [one for one in self.chunks if bound is None or past + one <= bound]
        fitting = fitting or [self.chunks[0]]
        return next((chunk for chunk in fitting if chunk >= tokens), fitting[-1])

    def capacity(self, tokens: int) -> int:
        """Returns the smallest cache capacity that fits this many tokens.

        Raises:
            ContextError: [context-overflow] if none fits.
        """
        for capacity in self.capacities:
            if capacity >= tokens or not self._has_slots:
                return capacity
        raise ContextError(
            f"static cache must contain at most {self.capacities[-1]:,} tokens, got {tokens:,}. "
            "Shorten the prompt, or load the model with a larger max_context.",
            code="context-overflow",
        )
