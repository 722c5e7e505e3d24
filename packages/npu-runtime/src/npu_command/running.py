"""Finds a script or module and runs it as `python` itself would, in the module `__main__`."""

import importlib.util
import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import TracebackType

from npu_command.errors import InputError

__all__ = ["ModuleProgram", "Program", "ScriptProgram"]

_OWN_DIRECTORY = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class ScriptProgram:
    """`python script.py args...`; a folder or zip file with a module `__main__` works as well."""

    path: Path
    arguments: tuple[str, ...]

    @classmethod
    def find(cls, name: str, arguments: Sequence[str]) -> "ScriptProgram":
        """Checks that the script exists; raises [script-missing] if not."""
        path = Path(name)
        # os.path takes any text; Path raises for a name that is too long.
        runnable = path / "__main__.py" if os.path.isdir(path) else path  # noqa: PTH112
        if not os.path.isfile(runnable):  # noqa: PTH113
            raise InputError(
                f"script must be an existing file, got {name}. Check the path, or use -m for a "
                f"module.",
                code="script-missing",
            )
        return cls(path, tuple(arguments))

    @property
    def name(self) -> str:
        """The name in a trace."""
        return self.path.name

    def run(self) -> None:
        """Runs the program; its exceptions propagate."""
        sys.argv[:] = [str(self.path), *self.arguments]
        if self.path.is_dir() or zipfile.is_zipfile(self.path):
            del sys.path[:1]  # the entry of our command; runpy inserts another
            _run_as_python(lambda: runpy.run_path(str(self.path), run_name="__main__"))
            return
        _set_first_path(str(self.path.resolve().parent))
        file_name = str(self.path.absolute())
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=file_name, __builtins__=__builtins__, __cached__=None)
        sys.modules["__main__"] = main

        def execute() -> None:
            with io.open_code(file_name) as file:
                source = file.read()
            exec(compile(source, file_name, "exec", dont_inherit=True), main.__dict__)

        _run_as_python(execute)


@dataclass(frozen=True, slots=True)
class ModuleProgram:
    """`python -m module args...`."""

    module: str
    arguments: tuple[str, ...]
    spec: ModuleSpec

    @classmethod
    def find(cls, name: str, arguments: Sequence[str]) -> "ModuleProgram":
        """Finds the module, or raises [module-missing]; imports its packages as `python -m`."""
        _set_first_path(str(Path.cwd()))
        spec = _find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _find_spec(f"{name}.__main__")
        if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
            raise InputError(
                f"-m must be a module, or a package with a __main__, got {name}, which was not "
                f"found. Check the name and the environment.",
                code="module-missing",
            )
        return cls(name, tuple(arguments), spec)

    @property
    def name(self) -> str:
        """The name in a trace."""
        return f"-m {self.module}"

    def run(self) -> None:
        """Runs the program; its exceptions propagate."""
        spec = self.spec
        sys.argv[:] = [str(spec.origin), *self.arguments]
        main = types.ModuleType("__main__")
        main.__dict__.update(
            __file__=spec.origin,
            __builtins__=__builtins__,
            __cached__=spec.cached,
            __loader__=spec.loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        sys.modules["__main__"] = main

        def execute() -> None:
            code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
            exec(code, main.__dict__)

        _run_as_python(execute)


Program = ScriptProgram | ModuleProgram


def _set_first_path(directory: str) -> None:
    """Replaces our sys.path entry with the program's directory, as python does at startup."""
    if not sys.flags.safe_path:
        sys.path[:1] = [directory]


def _find_spec(name: str) -> ModuleSpec | None:
    if not all(name.split(".")) or name == "__main__":
        return None
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A parent package is missing; a missing import inside one is the program's error.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _run_as_python(execute: Callable[[], object]) -> None:
    """Runs the program; an error is shown without our frames, then ends the process as usual.

    The error propagates, so that the interpreter chooses the exit code (or the signal, for Ctrl-C)
    and joins threads first; only the second traceback is suppressed.
    """
    try:
        execute()
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = _past_our_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None
        raise


def _past_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith((_OWN_DIRECTORY, "<frozen runpy>")):
            return traceback
        traceback = traceback.tb_next
    return None
