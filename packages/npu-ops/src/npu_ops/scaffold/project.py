"""Checks the name of a new op and writes its project from the templates."""

import os
from pathlib import Path
from string import Template

from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.scaffold.op_name import check_name, check_namespace

__all__ = ["write_project"]

_TEMPLATES = Path(__file__).with_name("templates")

# File of the project -> template. `{name}` in a path is the name of the op.
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
        name: name of the op, of its namespace in `torch.ops`, and of the Python package.
        directory: new or empty directory of the project. By default a new one in the current
            directory, named after the op.

    Returns:
        The directory, and the files in it.

    Raises:
        OperatorInputError: the name is invalid or taken (code ``op-name``); the directory is not
            empty (code ``directory-taken``).
        OpsError: the files cannot be written (code ``directory-unwritable``).
    """
    check_name(name)
    check_namespace(name)
    place = Path(directory) if directory is not None else Path(name)
    try:
        if _is_taken(place):
            raise OperatorInputError(
                f"`directory` must be new or empty, got {place}. Name another with --directory.",
                code="directory-taken",
            )
        return place, tuple(_write(place, name))
    except OSError as failure:
        raise OpsError(
            f"`directory` must be writable, got {place}: {failure.strerror or failure}. Name "
            "another with --directory.",
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
