"""The paged KV cache of the kernel pipeline: a batch of sequences on block tables.

Columns are a batch's tokens including padding; slots are a sequence's tokens without it. A padding
token has no slot and no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from npu_llm.errors import OptionError
from npu_llm.kv_cache.blocks import BlockPool, BlockTable, as_matrix, build_rows, run_rows
from npu_llm.kv_cache.cache import StepCache
from npu_ops.kernel_programs.program import BLOCK_SLOTS

__all__ = ["PagedCache"]


class PagedCache(StepCache):
    """The cache of one generation, in blocks of its program's pool."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        vocabulary: int,
        positions: int | None,
        counts_distances: bool = False,
    ) -> None:
        """Creates an empty cache.

        Args:
            pool: the block pool, which also runs steps.
            vocabulary: number of logits per token.
            positions: upper bound of positions; None for no bound.
            counts_distances: whether attention depends on the number of tokens between two. Such a
                model also counts padding, which has no slot here.
        """
        super().__init__()
        self._columns = 0  # tokens of each sequence, including padding
        self._counts_distances = counts_distances
        self._pool = pool
        self._vocabulary = vocabulary
        self._positions = positions
        self._tables: list[BlockTable] = []
        # (sequences, columns) bool: whether each holds a token; None if all do.
        self._real: torch.Tensor | None = None
        self._block_tables: torch.Tensor | None = None  # as in Rows; None if they changed

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens in the cache, including padding."""
        return self._columns

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step; see StepCache.step.

        A step that fails or is interrupted leaves the cache unchanged. Logits of padding are 0.

        Raises:
            ContextError: [cache-blocks] if the tokens do not fit.
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [padding-inside] for padding after a token if distances count, [changed-mask] if the
                mask changes for cached tokens, [position-range] for a position above the model's
                limit.
        """
        on_host = {name: tensor.cpu() for name, tensor in values.items()}
        batch, tokens = on_host["input_ids"].shape
        self._arrange(self.next_rows(batch).tolist())
        self._batch, self._rows = batch, None
        try:
            real = self._real_columns(on_host["attention_mask"])
            new = None if real is None else real[:, self._columns :]
            counts = [tokens] * batch if new is None else new.sum(1).tolist()
            self._make_room(counts)
            logits = self._run(on_host, new, counts)
        except BaseException:
            self._take_back()
            raise
        for table, count in zip(self._tables, counts, strict=True):
            table.slots += count
        self._columns += tokens
        self._real = real
        return logits if device == "cpu" else logits.to(device)

    def append(self, tokens: Sequence[int], *, num_logits: int = 1) -> torch.Tensor:
        """Runs a step on new tokens of a single sequence; see StepCache.append.

        A step that fails or is interrupted leaves the cache unchanged.
        """
        self._arrange([0])
        self._batch = 1
        (table,) = self._tables
        count = len(tokens)
        try:
            self._check_positions(0, table.slots + count - 1)
            self._make_room([count])
            rows = build_rows(
                self._tables, [count], torch.tensor(tokens),
                kept=torch.arange(count - num_logits, count), block_tables=self._block_tables,
            )  # fmt: skip
            logits: torch.Tensor
            logits = self._pool.store.step(rows) if count == 1 else run_rows(self._pool.store, rows)
        except BaseException:
            self._take_back()
            raise
        table.slots += count
        self._columns += count
        if self._real is not None:
            self._real = torch.nn.functional.pad(self._real, (0, count), value=True)
        return logits

    @property
    def is_croppable(self) -> bool:
        """True: slots after the kept tokens are overwritten."""
        return True

    def reset(self) -> None:
        """Removes all tokens."""
        super().reset()
        for table in self._tables:
            table.crop(0)
        self._tables, self._real, self._block_tables = [], None, None
        self._columns = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the content of the rows that the next step continues; empty without tokens.

        Returns:
            blocks (blocks, block_bytes) uint8, each once; tables (rows, most blocks) int32, indices
            of these; slots (rows,) and columns (1,) int64; real (rows, columns) bool if there is
            padding.
        """
        if self._columns == 0:
            return {}
        chosen = self.next_rows(self._held_rows).tolist()
        held = [self._tables[row].blocks[: self._blocks_of(row)] for row in chosen]
        ids = list(dict.fromkeys(block for blocks in held for block in blocks))
        places = {block: place for place, block in enumerate(ids)}
        tables = [[places[block] for block in blocks] for blocks in held]
        found = {
            "blocks": self._pool.store.read_blocks(ids),
            "tables": torch.from_numpy(as_matrix(tables)),
            "slots": torch.tensor([self._tables[row].slots for row in chosen]),
            "columns": torch.tensor([self._columns]),
        }
        if self._real is not None:
            found["real"] = self._real[chosen]
        return found

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replaces the content by the result of `tensors`.

        Raises:
            KeyError: if a tensor is missing.
            RuntimeError: if one has another shape.
            ContextError: [cache-blocks]; then the cache is empty.
        """
        self.reset()
        blocks, slots = tensors["blocks"], tensors["slots"].tolist()
        if blocks.dim() != 2 or blocks.shape[1] != self._pool.store.block_bytes:
            raise RuntimeError(f"blocks have shape {tuple(blocks.shape)}")
        whole = BlockTable(self._pool)  # owns all blocks until the rows do
        whole.make_room(len(blocks) * BLOCK_SLOTS)
        self._pool.store.write_blocks(whole.blocks, blocks)
        for places, count in zip(tensors["tables"].tolist(), slots, strict=True):
            table = BlockTable(self._pool)
            held = [whole.blocks[place] for place in places[: -(-count // BLOCK_SLOTS)]]
            self._pool.share(held)
            table.blocks += held
            table.slots = count
            self._tables.append(table)
        whole.crop(0)
        self._columns = int(tensors["columns"])
        self._real = tensors.get("real")
        self._batch = len(slots)

    def _keep(self, length: int) -> None:
        real = None if self._real is None else self._real[:, :length]
        for index, table in enumerate(self._tables):
            table.crop(length if real is None else int(real[index].sum()))
        self._columns, self._real, self._block_tables = length, real, None

    def _take_back(self) -> None:
        """Undoes a failed step's preparation; an empty cache accepts any batch size."""
        for table in self._tables:
            table.crop(table.slots)
        self._block_tables = None
        if self._columns == 0:
            self.reset()

    def _arrange(self, chosen: Sequence[int]) -> None:
        """Makes row i continue row chosen[i]; an empty batch gets as many rows."""
        if not self._tables:
            self._tables = [BlockTable(self._pool) for _ in chosen]
            return
        if list(chosen) == list(range(len(self._tables))):
            return
        left: list[BlockTable | None] = list(self._tables)
        tables = []
        for index in chosen:
            first = left[index]
            left[index] = None
            tables.append(first or self._tables[index].fork())
        if self._real is not None:
            self._real = self._real[list(chosen)]
        self._tables, self._block_tables = tables, None
        for table in left:
            if table is not None:
                table.crop(0)

    def _blocks_of(self, row: int) -> int:
        return -(-self._tables[row].slots // BLOCK_SLOTS)

    def _real_columns(self, mask: torch.Tensor) -> torch.Tensor | None:
        """Returns which columns hold a token after the step; None if all do."""
        if self._real is None and bool(mask.all()):
            return None
        real = mask != 0
        held = real[:, : self._columns]
        before = torch.ones_like(held) if self._real is None else self._real
        if not torch.equal(held, before):
            wrong = int((held != before).any(0).nonzero()[0])
            raise OptionError(
                "`attention_mask` must not change for tokens in the cache, got another value for "
                f"token {wrong}. Start from a new cache to hide tokens.",
                code="changed-mask",
            )
        if self._counts_distances and bool((real[:, 1:] < real[:, :-1]).any()):
            raise OptionError(
                "`attention_mask` must have padding only before a row's tokens, for a model "
                "whose attention has a window or slopes, got padding after a token. Pad on the "
                'left, or pass pipeline="dynamic".',
                code="padding-inside",
            )
        return real

    def _make_room(self, counts: Sequence[int]) -> None:
        for table, count in zip(self._tables, counts, strict=True):
            if table.make_room(count):
                self._block_tables = None
        if self._block_tables is None:
            self._block_tables = torch.from_numpy(
                as_matrix([table.blocks for table in self._tables])
            )

    def _run(
        self, values: Mapping[str, torch.Tensor], new: torch.Tensor | None, counts: Sequence[int]
    ) -> torch.Tensor:
        """Runs the step's rows, sequence by sequence; returns (batch, kept, vocabulary)."""
        ids, positions, kept = (
            values[name] for name in ("input_ids", "position_ids", "logits_to_keep")
        )
        batch, tokens = ids.shape
        # The row of each token: (batch, tokens); -1 for padding.
        if new is None:
            places = torch.arange(batch * tokens).view(batch, tokens)
            flat_ids, flat_positions = ids.reshape(-1), positions.reshape(-1)
        else:
            places = torch.where(new, new.reshape(-1).cumsum(0).view(batch, tokens) - 1, -1)
            flat_ids, flat_positions = ids[new], positions[new]
        if len(flat_positions):
            self._check_positions(*(int(bound) for bound in torch.aminmax(flat_positions)))
        wanted = places[:, kept].reshape(-1)  # (batch * kept,) rows, -1 for padding
        # Ascending and unique; with one token per sequence it already is.
        is_plain = new is None and len(kept) == 1
        order = wanted if is_plain else torch.unique(wanted[wanted >= 0])
        rows = build_rows(
            self._tables, counts, flat_ids,
            kept=order, positions=flat_positions, block_tables=self._block_tables,
        )  # fmt: skip
        if len(flat_ids):
            logits: torch.Tensor = run_rows(self._pool.store, rows)
        else:  # only padding
            logits = torch.zeros(0, self._vocabulary)
        if not (is_plain or torch.equal(order, wanted)):
            is_real = wanted >= 0
            computed = logits[torch.searchsorted(order, wanted[is_real])]
            logits = torch.zeros(len(wanted), self._vocabulary)
            logits[is_real] = computed
        return logits.view(batch, len(kept), self._vocabulary)

    def _check_positions(self, low: int, high: int) -> None:
        if self._positions is not None and (low < 0 or high >= self._positions):
            raise OptionError(
                f"`position_ids` must be between 0 and {self._positions - 1} for this model, got "
                f"{low if low < 0 else high}. Omit them to count the tokens.",
                code="position-range",
            )
