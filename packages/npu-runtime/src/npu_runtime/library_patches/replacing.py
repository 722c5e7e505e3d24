"""Replaces functions of other libraries, including imported copies."""

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

from npu_command.import_hooks import when_imported

__all__ = ["change_when_imported", "forget_answers", "replace", "replace_copies", "wrap"]

_logger = logging.getLogger(__name__)


def change_when_imported(name: str, change: Callable[[ModuleType], None]) -> None:
    """Patches a module after its import; a failure is only logged."""
    # If its import began before torch's, other modules may hold copies.
    when_imported(name, functools.partial(_change, name, change, was_there=name in sys.modules))


def replace(owner: Any, name: str, new: object) -> bool:
    """Replaces a function in its module or class.

    Returns False, with a log line, if the name does not exist (an unknown release).
    """
    if vars(owner).get(name) is None:
        where = owner.__name__ if isinstance(owner, ModuleType) else owner.__qualname__
        _logger.warning(
            "npu: %s has no %s in this release, and is not patched for npu there", where, name
        )
        return False
    setattr(owner, name, new)
    return True


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Wraps a function with `around(function, *arguments)`."""
    old = vars(owner).get(name)

    def called(*arguments: Any, **named: Any) -> Any:
        return around(old, *arguments, **named)

    replace(owner, name, called if old is None else functools.wraps(old)(called))


def forget_answers(module: ModuleType, questions: set[str]) -> None:
    """Disables the caches of functions that depend on the replaced ones.

    Their results may change once the device is used.
    """
    found = True
    while found:  # one may call another
        found = False
        for name, value in list(vars(module).items()):
            if name in questions or not isinstance(value, functools._lru_cache_wrapper):
                continue
            code = _innermost_code(value)
            if code is not None and questions.intersection(code.co_names):
                replace(module, name, functools.lru_cache(maxsize=0)(value.__wrapped__))
                questions.add(name)
                found = True


def replace_copies(module: ModuleType, before: dict[str, object]) -> None:
    """Replaces copies that other modules imported `before` the patch."""
    new = {id(old): vars(module)[name] for name, old in before.items() if name in vars(module)}
    changed = {key: value for key, value in new.items() if id(value) != key}
    for other in _modules_like(module):
        for name, value in list(vars(other).items()):
            if id(value) in changed:
                vars(other)[name] = changed[id(value)]


def _change(name: str, change: Callable[[ModuleType], None], *, was_there: bool) -> None:
    module = sys.modules[name]
    before = dict(vars(module))
    try:
        change(module)
        if was_there:
            replace_copies(module, before)
    except Exception as error:  # noqa: BLE001  # an unknown release
        _logger.warning(
            "npu: %s is not patched for npu, because its release is unknown: %s: %s",
            name,
            type(error).__name__,
            error,
        )


def _innermost_code(function: Any) -> CodeType | None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _modules_like(owner: ModuleType) -> Iterator[ModuleType]:
    """The program's own module, and the loaded modules of the library that a module is of."""
    library = owner.__name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        is_meant = name == "__main__" or name.partition(".")[0] == library
        if is_meant and isinstance(module, ModuleType):
            yield module
