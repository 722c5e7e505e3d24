"""Batches in every layout, with infinities and NaN wherever nobody may read."""

from dataclasses import dataclass

import pytest
import torch


@dataclass(frozen=True)
class Placement:
    """Layout of the sequences of a batch in memory.

    Attributes:
        queries, keys: lengths of each sequence.
        layout_query, layout_key: as the ops name them.
        pages: for each sequence, its pages in order; all distinct, in random order.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    layout_query: str
    layout_key: str
    page_size: int
    pages: tuple[tuple[int, ...], ...]

    def place_queries(self, rows):
        """Rows of each sequence, (length, ...), as one tensor."""
        if self.layout_query == "TND":
            return torch.cat([*rows, poison(2, *rows[0].shape[1:], like=rows[0])])
        return self._padded(rows, self.queries)

    def place_keys(self, rows):
        """Rows of each sequence, (length, width), as one tensor with its head."""
        rows = [part.unsqueeze(-2) for part in rows]
        if self.layout_key == "TND":
            return torch.cat([*rows, poison(1, *rows[0].shape[1:], like=rows[0])])
        if self.layout_key == "BSND":
            return self._padded(rows, self.keys)
        count = sum(map(len, self.pages)) + 2  # two pages that belong to none
        cache = poison(count, self.page_size, *rows[0].shape[1:], like=rows[0])
        for part, pages in zip(rows, self.pages, strict=True):
            for at in range(part.shape[0]):
                cache[pages[at // self.page_size], at % self.page_size] = part[at]
        return cache

    def options(self, *, key_name):
        """The keyword arguments of this layout, with the key's lengths as the op names them."""
        table = None
        if self.layout_key == "PA_BSND":
            columns = max(map(len, self.pages)) + 1
            table = torch.full((len(self.keys), columns), -7, dtype=torch.int32)
            for row, pages in zip(table, self.pages, strict=True):
                row[: len(pages)] = torch.tensor(pages, dtype=torch.int32)
        return {
            "actual_seq_lengths_query": lengths(self.queries, self.layout_query),
            f"actual_seq_lengths_{key_name}": lengths(self.keys, self.layout_key),
            "block_table": table,
            "layout_query": self.layout_query,
            "layout_key" if key_name == "key" else "layout_kv": self.layout_key,
        }

    def split(self, result):
        """The rows of each sequence in a result, and the padding rows."""
        if self.layout_query == "TND":
            parts = result.split([*self.queries, result.shape[0] - sum(self.queries)])
            return list(parts[:-1]), parts[-1]
        real = [row[:count] for row, count in zip(result, self.queries, strict=True)]
        padding = [row[count:] for row, count in zip(result, self.queries, strict=True)]
        return real, torch.cat(padding)

    def _padded(self, rows, counts):
        whole = poison(len(rows), max(counts) + 1, *rows[0].shape[1:], like=rows[0])
        for to, part in zip(whole, rows, strict=True):
            to[: part.shape[0]] = part
        return whole


def poison(*shape, like):
    """NaN and infinities, or the ends of the integers."""
    if like.dtype.is_floating_point:
        values = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=like.dtype)
    else:
        values = torch.tensor([127, -128, 1], dtype=like.dtype)
    count = torch.Size(shape).numel()
    return values.repeat(count // 3 + 1)[:count].reshape(shape)


def lengths(counts, layout):
    found = torch.tensor(counts, dtype=torch.int32)
    return found.cumsum(0).to(torch.int32) if layout == "TND" else found


@pytest.fixture(scope="session")
def place():
    def make(queries, keys, layouts, *, page_size=16):
        layout_query, layout_key = layouts
        counts = [-(-count // page_size) for count in keys]
        order = iter(torch.randperm(sum(counts)).tolist())
        pages = tuple(tuple(next(order) for _ in range(count)) for count in counts)
        return Placement(tuple(queries), tuple(keys), layout_query, layout_key, page_size, pages)

    return make


@pytest.fixture(scope="session")
def to_device():
    def move(value, device):
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return {k: move(v, device) for k, v in value.items()} if isinstance(value, dict) else value

    return move
