"""Records calls of torch modules, and imports."""

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["ImportCall", "ImportCalls", "ModuleCall", "ModuleCalls"]

# About 200 bytes each, taken every half second; at most 300,000 occur per second.
MAX_CALLS = 1_000_000

# Modules of a compiled graph: not part of a model, and shown on rows of the device.
_MADE_OF_MODELS = ("npu_compiler.programs.execution",)

# torch.compile's wrapper is not part of a model's paths.
_COMPILED = "_orig_mod"

_hook_ids: list[int] = []


class ModuleCall(NamedTuple):
    """One call of a module."""

    thread_id: int  # the operating system's
    path: str  # of the module in its root model; the class of the root itself
    class_name: str  # of the module
    root_name: str  # class of the root model
    start_ns: int  # unix epoch
    end_ns: int  # unix epoch; the time of the exception if it raised


class _Name(NamedTuple):
    module: "weakref.ref[torch.nn.Module]"
    path: str
    class_name: str
    root_name: str


class _Frame(NamedTuple):
    name: _Name
    start_ns: int


class ModuleCalls:
    """Records from `start` to `stop`, with hooks only in between.

    Args:
        max_calls: maximum number of calls until the next `take`; later calls are only counted.

    Attributes:
        dropped: number of dropped calls.
    """

    def __init__(self, *, max_calls: int = MAX_CALLS) -> None:
        self.dropped = 0
        self._calls: deque[ModuleCall] = deque()
        self._max_calls = max_calls
        self._names: dict[int, _Name] = {}
        self._open: dict[int, list[_Frame]] = {}
        self._local = threading.local()
        self._remove: Callable[[], None] | None = None

    def start(self) -> None:
        """Starts to record new calls. Call it after torch's import."""
        if self._remove is None:
            self._remove = _install(*self._hooks())

    def stop(self) -> None:
        """Stops recording; unfinished calls end here."""
        if self._remove is None:
            return
        self._remove()
        self._remove = None
        now_ns = time.time_ns()
        for thread_id, frames in list(self._open.items()):
            for frame in reversed(frames):
                self._keep(thread_id, frame, now_ns)
        self._open = {}
        self._local = threading.local()

    def take(self) -> list[ModuleCall]:
        """Returns the calls since the last `take`, in order of completion."""
        taken: list[ModuleCall] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._calls.popleft())
        return taken

    def _hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        from torch.compiler import is_compiling

        local, names = self._local, self._names

        # Dynamo reads both to their first line: compiled code has no modules at run time.
        def before(module: "torch.nn.Module", _: Any) -> None:
            if is_compiling():
                return
            frames = getattr(local, "frames", None)
            if frames is None:
                frames = local.frames = self._open.setdefault(threading.get_native_id(), [])
            name = names.get(id(module))
            if name is None or name.module() is not module:
                if type(module).__module__ in _MADE_OF_MODELS:
                    return
                name = self._name(module)
            frames.append(_Frame(name, time.time_ns()))

        def after(module: "torch.nn.Module", *_: Any) -> None:
            if is_compiling():
                return
            end_ns = time.time_ns()
            frames = getattr(local, "frames", None)
            # One that was entered before the recording has no frame; one that an interrupt threw
            # out of its call (no hook hears of that) has left its own on top of this one's.
            if frames and any(frame.name.module() is module for frame in reversed(frames)):
                thread_id = threading.get_native_id()
                while True:
                    frame = frames.pop()
                    self._keep(thread_id, frame, end_ns)
                    if frame.name.module() is module:
                        break

        return before, after

    def _keep(self, thread_id: int, frame: _Frame, end_ns: int) -> None:
        if len(self._calls) >= self._max_calls:
            self.dropped += 1
            return
        name = frame.name
        self._calls.append(
            ModuleCall(
                thread_id, name.path, name.class_name, name.root_name, frame.start_ns, end_ns
            )
        )

    def _name(self, module: "torch.nn.Module") -> _Name:
        """Names a new root module and its submodules."""
        root_name = _class_name(module)
        for path, part in list(module.named_modules()):
            steps = [step for step in path.split(".") if step and step != _COMPILED]
            self._names[id(part)] = _Name(
                weakref.ref(part, self._forget(id(part))),
                ".".join(steps) or _class_name(part),
                _class_name(part),
                root_name,
            )
        return self._names[id(module)]

    def _forget(self, key: int) -> Callable[[object], None]:
        names = weakref.ref(self)

        def forget(reference: object) -> None:
            calls = names()
            # Another module may have the same id by now.
            name = None if calls is None else calls._names.get(key)
            if calls is not None and name is not None and name.module is reference:
                del calls._names[key]

        return forget


def _install(before: Callable[..., None], after: Callable[..., None]) -> Callable[[], None]:
    """Hooks into calls of modules; returns a function that removes the hooks."""
    from torch.nn.modules import module as torch_module

    target: Any = torch_module
    _hook(target, before, after)
    # Compiled modules warn when they are called with hooks like these, and a program may take
    # warnings for errors; torch's warning of a second call of ours for their wrapper is expected.
    has_any_hook = target._has_any_global_hook

    def has_other_hook() -> bool:
        kinds = ("forward_pre", "forward", "backward_pre", "backward")
        return any(
            hook not in (before, after)
            for kind in kinds
            for hook in getattr(target, f"_global_{kind}_hooks").values()
        )

    target._has_any_global_hook = has_other_hook

    def remove() -> None:
        target._has_any_global_hook = has_any_hook
        for hooks in (
            target._global_forward_pre_hooks,
            target._global_forward_hooks,
            target._global_forward_hooks_always_called,
        ):
            for hook_id in _hook_ids:
                hooks.pop(hook_id, None)

    return remove


def _hook(target: Any, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Registers hooks; later registrations reuse the ids of the first.

    Compiled graphs are guarded by these ids: new ids would recompile them in each window of a
    schedule.
    """
    if _hook_ids:
        target._global_forward_pre_hooks[_hook_ids[0]] = before
        target._global_forward_hooks[_hook_ids[1]] = after
        target._global_forward_hooks_always_called[_hook_ids[1]] = True
        return
    _hook_ids.append(target.register_module_forward_pre_hook(before).id)
    _hook_ids.append(target.register_module_forward_hook(after, always_call=True).id)


def _class_name(module: "torch.nn.Module") -> str:
    """Returns the class name of a module, or of the original of a compiled module."""
    compiled = getattr(module, _COMPILED, None)
    return type(module if compiled is None else compiled).__name__


_LEAST_NS = 1_000_000
_FUNCTION = "_find_and_load"
# Python leaves the frames of this file out of the traceback of an import that fails.
_FILE = "<frozen importlib._bootstrap>"


@dataclass(frozen=True, slots=True)
class ImportCall:
    """An import that ran a module's code."""

    name: str
    thread_id: int
    start_ns: int
    end_ns: int


class ImportCalls:
    """Records imports of modules that are not loaded yet, on all threads."""

    def __init__(self) -> None:
        self._calls: list[ImportCall] = []
        self._inside = threading.local()
        self._original: Callable[..., Any] | None = None
        self._installed: Callable[..., Any] | None = None
        self._is_on = False

    def start(self) -> None:
        """Starts to record."""
        # Python calls this function for `import` statements of modules that are not loaded.
        bootstrap: Any = sys.modules["_frozen_importlib"]
        original = self._original = getattr(bootstrap, _FUNCTION)

        @functools.wraps(original)
        def find_and_load(name: str, import_: Any) -> Any:
            if not self._is_on:
                return original(name, import_)
            package, outer = name.partition(".")[0], getattr(self._inside, "package", "")
            if package == outer:
                return original(name, import_)
            self._inside.package = package
            start_ns = time.time_ns()
            try:
                return original(name, import_)
            finally:
                self._inside.package = outer
                self._note(name, start_ns)

        installed: Any = find_and_load
        installed.__code__ = installed.__code__.replace(co_filename=_FILE)
        setattr(bootstrap, _FUNCTION, installed)
        self._installed = installed
        self._is_on = True

    def stop(self) -> None:
        """Stops recording; later wrappers by other code stay."""
        self._is_on = False
        bootstrap: Any = sys.modules["_frozen_importlib"]
        if getattr(bootstrap, _FUNCTION) is self._installed:
            setattr(bootstrap, _FUNCTION, self._original)

    def take(self) -> list[ImportCall]:
        """Returns the imports that ended since the last call."""
        taken, self._calls = self._calls, []
        return taken

    def _note(self, name: str, start_ns: int) -> None:
        end_ns = time.time_ns()
        if end_ns - start_ns >= _LEAST_NS:
            self._calls.append(ImportCall(name, threading.get_native_id(), start_ns, end_ns))
