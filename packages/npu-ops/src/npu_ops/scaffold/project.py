"""Checks the name of a new op and writes its project from the templates."""

import importlib.util
import keyword
import os
import re
import sys
from pathlib import Path
from string import Template

import torch

from npu_ops.errors import OperatorInputError, OpsError

__all__ = ["write_project"]

_TEMPLATES = Path(__file__).with_name("templates")

# File of the project -> template. `{name}` in a path is the op's name.
_FILES = {
    "CMakeLists.txt": "CMakeLists.txt.template",
    "README.md": "README.md.template",
    "benchmarks/time_{name}.py": "benchmark.py.template",
    "csrc/kernel.h": "kernel.h.template",
    "csrc/{name}.cpp": "op.cpp.template",
    "pyproject.toml": "pyproject.toml.template",
    "src/{name}/__init__.py": "package.py.template",
    "src/{name}/converter.py": "converter.py.template",
    "src/{name}/py.typed": "py.typed.template",
    "tests/test_{name}.py": "test.py.template",
}


def write_project(
    name: str, directory: str | os.PathLike[str] | None = None
) -> tuple[Path, tuple[Path, ...]]:
    """Writes the project of a new op.

    Args:
        name: of the op, of its namespace in `torch.ops`, and of the Python package.
        directory: where to write; it must be new or empty. By default a new one in the current
            directory, called as the op.

    Returns:
        The directory, and the files in it.

    Raises:
        OperatorInputError: the name cannot be one, or is another's (code ``op-name``); the
            directory holds something (code ``directory-taken``).
        OpsError: the files cannot be written (code ``directory-unwritable``).
    """
    _check_name(name)
    place = Path(directory) if directory is not None else Path(name)
    try:
        if _is_taken(place):
            raise OperatorInputError(
                f"npu-ops new: the directory must be new or empty; {place} is not. "
                "Name another one with --directory.",
                code="directory-taken",
            )
        return place, tuple(_write(place, name))
    except OSError as failure:
        raise OpsError(
            f"npu-ops new: cannot write to {place} ({failure.strerror or failure}). "
            "Name a directory that can be written with --directory.",
            code="directory-unwritable",
        ) from failure


def _is_taken(place: Path) -> bool:
    if place.is_dir():
        return any(place.iterdir())
    return place.is_symlink() or place.exists()


def _write(place: Path, name: str) -> list[Path]:
    written = []
    for path, template in _FILES.items():
        file = place / path.format(name=name)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = Template((_TEMPLATES / template).read_text(encoding="utf-8"))
        file.write_text(text.substitute(name=name, wheel=name.replace("_", "-")), encoding="utf-8")
        written.append(file)
    return written


def _check_name(name: str) -> None:
    if (problem := _problem(name)) is not None:
        raise OperatorInputError(
            f"npu-ops new: the name {problem}; got {name!r}. Choose another, such as my_op.",
            code="op-name",
        )


def _problem(name: str) -> str | None:
    """What is wrong with a name; None when it can be a package, a namespace and an op."""
    if not re.fullmatch(r"[a-z](?:[a-z0-9_]*[a-z0-9])?", name):
        return "is made of a-z, 0-9 and _, begins with a letter and ends with none of _"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "must not be a word of Python's own"
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        return "must not be that of a Python package that is there already"
    if name in {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()}:
        return "must not be that of a namespace of torch.ops"
    return None
