"""Registry of checks: each belongs to a table field, and its docstring is its description."""

from collections.abc import Callable
from dataclasses import dataclass

from npu_runtime.driver_conformance.bench import Bench
from npu_runtime.driver_conformance.driver_table import FIELDS

__all__ = ["Check", "check", "registered"]


@dataclass(frozen=True)
class Check:
    """One rule about a field of the table; its body raises CheckFailure or Unsupported.

    `is_open` is whether it gets an open driver with memory.
    """

    field: str
    name: str
    body: Callable[[Bench], None]
    is_open: bool

    @property
    def label(self) -> str:
        """``field.name``, which ``-k`` selects by."""
        return f"{self.field}.{self.name}"


_checks: dict[str, Check] = {}


def check(
    field: str, *, is_open: bool = True
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Registers a function as a check of ``field``, named after the rule."""

    def register(body: Callable[[Bench], None]) -> Callable[[Bench], None]:
        made = Check(field, body.__name__, body, is_open)
        if field not in FIELDS:
            raise ValueError(f"{made.label}: npu_driver has no field {field}.")
        if made.label in _checks:
            first = _checks[made.label].body.__code__
            second = body.__code__
            raise ValueError(
                f"{made.label} is registered twice: {first.co_filename}:{first.co_firstlineno} "
                f"and {second.co_filename}:{second.co_firstlineno}."
            )
        _checks[made.label] = made
        return body

    return register


def registered() -> list[Check]:
    """The checks of all modules that were imported, by the table's fields and then by name."""
    return sorted(_checks.values(), key=lambda item: (FIELDS.index(item.field), item.name))
