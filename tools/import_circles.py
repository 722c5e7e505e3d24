"""Rejects circular imports, including type-checking and by-name imports; run by `nox -s layers`.

import-linter compares the modules of a folder with each other, but not with the folder itself. A
module that imports a name from its own package can close a circle, which then depends on the import
order. Imports under TYPE_CHECKING and calls of import_module with a literal name count too, because
readers must follow them.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

# Extension modules have no Python source, so that an import from one counts as an import of its
# package.
_FROM_NATIVE = re.compile(r"from \w+\._C import ")
_OF_NATIVE = re.compile(r"from (?P<package>\w+) import (?P<names>\w.*)")


def find_circle(*packages: str) -> list[str]:
    """Returns the modules of a circle, each of which imports the next; empty if there is none.

    Args:
        packages: import names, with sources on the path.
    """
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    at_run_time = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imported: dict[str, set[str]] = {}
    for importer in graph.modules:
        # A package lists its lazy names for type checkers, which its modules may import.
        of_importer = at_run_time if graph.find_children(importer) else graph
        imported[importer] = {
            name
            for name in of_importer.find_modules_directly_imported_by(importer)
            if name != importer and not _is_native(graph, importer, name)
        }
    for package in packages:
        for importer, name in _named_imports(package):
            if name in graph.modules and name != importer:
                imported[importer].add(name)
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _named_imports(package: str) -> Iterator[tuple[str, str]]:
    """Yields a module, and one that it imports by import_module with a literal name."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    for folder in map(Path, spec.submodule_search_locations or ()):
        for file in sorted(folder.rglob("*.py")):
            text = file.read_text("utf-8")
            if "import_module(" not in text:
                continue
            parts = file.relative_to(folder.parent).with_suffix("").parts
            importer = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                        args=[ast.Constant(value=str(name)), *_],
                    ):
                        yield importer, name


def _is_native(graph: grimp.ImportGraph, importer: str, imported: str) -> bool:
    for detail in graph.get_import_details(importer=importer, imported=imported):
        line = detail["line_contents"].partition("#")[0].strip()
        if _FROM_NATIVE.match(line):
            continue
        found = _OF_NATIVE.fullmatch(line)
        names = found["names"].split(", ") if found else []
        modules = {"_C", *(name for name in names if f"{imported}.{name}" in graph.modules)}
        if "_C" not in names or set(names) - modules:
            return False
    return True


def main(packages: list[str]) -> int:
    """Prints the first circle; returns 1 if there is one, else 0."""
    circle = find_circle(*packages)
    if circle:
        print("A circle of imports: " + " -> ".join(circle), file=sys.stderr)
    return int(bool(circle))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
