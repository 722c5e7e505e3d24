"""RadixCache: prefix caching with a tree of full blocks that requests share.

A node is a full block: its tokens, after those of its parent. The tree holds a reference to each
block, so blocks outlive their requests. Least recently used leaves are evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from npu_llm.kv_cache.blocks import BlockPool
from npu_ops.kernel_programs.program import BLOCK_SLOTS

__all__ = ["RadixCache"]

_Key = tuple[int | str, ...]


class _Node:
    def __init__(self, parent: _Node | None, key: _Key, block: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.children: dict[_Key, _Node] = {}


class RadixCache:
    """Full blocks by their tokens and those of the preceding blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._root = _Node(None, (), -1)
        self._by_use: OrderedDict[int, _Node] = OrderedDict()  # by block, least recent first

    def __len__(self) -> int:
        """Number of blocks in the tree."""
        return len(self._by_use)

    def match(self, tokens: Sequence[int], salt: str | None = None) -> list[int]:
        """Returns the blocks of the longest cached prefix, each with one more reference.

        Args:
            tokens: the tokens.
            salt: blocks match only if they were inserted with an equal salt.
        """
        path = []
        node: _Node | None = self._root
        for key in _keys(tokens, salt):
            node = node.children.get(key) if node is not None else None
            if node is None:
                break
            path.append(node)
        self._touch(path)
        found = [node.block for node in path]
        self._pool.share(found)
        return found

    def insert(self, tokens: Sequence[int], blocks: Sequence[int], salt: str | None = None) -> None:
        """Adds the full blocks of a sequence; blocks already cached for equal tokens stay.

        Args:
            tokens: tokens of the blocks; those of a last block that is not full are ignored.
            blocks: the sequence's blocks in order.
            salt: see `match`.
        """
        path = []
        node = self._root
        for key, block in zip(_keys(tokens, salt), blocks, strict=False):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(node, key, block)
                self._pool.share([block])
                self._by_use[block] = child
            path.append(child)
            node = child
        self._touch(path)

    def evict(self) -> bool:
        """Releases the least recently used leaf without other users; False if there is none."""
        found = next((node for node in self._by_use.values() if self._is_idle(node)), None)
        if found is None:
            return False
        assert found.parent is not None, "the root has no block"
        del found.parent.children[found.key]
        del self._by_use[found.block]
        self._pool.release([found.block])
        return True

    def num_evictable(self) -> int:
        """Returns the number of its blocks without other users."""
        return sum(not self._pool.is_shared(block) for block in list(self._by_use))

    def clear(self) -> None:
        """Releases all blocks."""
        self._pool.release(self._by_use)
        self._by_use.clear()
        self._root.children.clear()

    def _is_idle(self, node: _Node) -> bool:
        return not node.children and not self._pool.is_shared(node.block)

    def _touch(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):  # a prefix is evicted after its continuations
            self._by_use.move_to_end(node.block)


def _keys(tokens: Sequence[int], salt: str | None) -> list[_Key]:
    """Returns the tokens of each full block; the first one's begin with the salt."""
    ends = range(BLOCK_SLOTS, len(tokens) + 1, BLOCK_SLOTS)
    keys: list[_Key] = [tuple(tokens[end - BLOCK_SLOTS : end]) for end in ends]
    if keys and salt is not None:
        keys[0] = (salt, *keys[0])
    return keys
