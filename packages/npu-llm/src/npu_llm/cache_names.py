"""The name of transformers' cache argument: `cache` since 5.24, `past_key_values` before.

Both name an argument, a field of outputs, and a key of generate's internal dictionary. Our models
accept either name under any release of transformers.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from npu_llm.errors import OptionError

__all__ = ["CACHE", "CACHES", "NAMES", "one_cache", "rename_cache"]

_RELEASE = tuple(int(part) for part in version("transformers").split(".")[:2])
_NAMES = ("cache", "past_key_values")
# All names that a caller may use.
NAMES = frozenset(_NAMES)

_IS_RENAMED = _RELEASE >= (5, 24)

CACHE = "cache" if _IS_RENAMED else "past_key_values"
# Names of the same argument in models that also keep states.
CACHES = ("cache", "state") if _IS_RENAMED else ("past_key_values", "cache_params", "state")


def one_cache(cache: Any, past_key_values: Any) -> Any:
    """Returns whichever of two arguments was given; None if neither was.

    Raises:
        OptionError: [two-caches] if both were given and differ.
    """
    if cache is None or past_key_values is None or cache is past_key_values:
        return past_key_values if cache is None else cache
    raise OptionError(
        "`cache` must not differ from past_key_values, its former name, got both. Pass one.",
        code="two-caches",
    )


def rename_cache(arguments: dict[str, Any]) -> Any:
    """Renames the cache argument to the installed transformers' name for it; returns the cache.

    Raises:
        OptionError: [two-caches] if two different caches were given.
    """
    found = one_cache(*(arguments.pop(name, None) for name in _NAMES))
    if found is not None:
        arguments[CACHE] = found
    return found
