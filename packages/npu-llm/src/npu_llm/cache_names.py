"""How transformers calls what holds keys and values: `cache` since 5.24, `past_key_values` before.

Both are the name of an argument, of a field of outputs, and of a key of generate's own dictionary.
Our models take either name, whatever transformers' release is.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from npu_llm.errors import OptionError

__all__ = ["CACHE", "CACHES", "NAMES", "one_cache", "rename_cache"]

_RELEASE = tuple(int(part) for part in version("transformers").split(".")[:2])
_NAMES = ("cache", "past_key_values")
# All names that a caller may give it.
NAMES = frozenset(_NAMES)

_IS_RENAMED = _RELEASE >= (5, 24)

CACHE = "cache" if _IS_RENAMED else "past_key_values"
# Names that models have for it, which keep states instead of keys and values too.
CACHES = ("cache", "state") if _IS_RENAMED else ("past_key_values", "cache_params", "state")


def one_cache(cache: Any, past_key_values: Any) -> Any:
    """Returns the one of two arguments that was given; None if neither was.

    Raises:
        OptionError: [two-caches] if both were, and differ.
    """
    if cache is None or past_key_values is None or cache is past_key_values:
        return past_key_values if cache is None else cache
    raise OptionError(
        "`cache` must not differ from past_key_values, its former name, got both. Pass one.",
        code="two-caches",
    )


def rename_cache(arguments: dict[str, Any]) -> Any:
    """Gives the cache among arguments the name that transformers has for it here; returns it.

    Raises:
        OptionError: [two-caches].
    """
    found = one_cache(*(arguments.pop(name, None) for name in _NAMES))
    if found is not None:
        arguments[CACHE] = found
    return found
