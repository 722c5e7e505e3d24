"""Refuses circles of imports that pass through a package's own `__init__`; run by `nox -s layers`.

import-linter compares the modules of a folder with each other, and not with the folder itself. A
module that imports a name from its own package can close a circle there: whether it works depends
on which of them is imported first.
"""

from __future__ import annotations

import graphlib
import re
import sys

import grimp

# The extension modules have no source in Python, so that an import from one, or of one beside
# other modules, counts as an import of its package.
_FROM_NATIVE = re.compile(r"from \w+\._C import ")
_OF_NATIVE = re.compile(r"from (?P<package>\w+) import (?P<names>\w.*)")


def find_circle(*packages: str) -> list[str]:
    """Returns the modules of a circle, each of which imports the next; empty if there is none.

    Args:
        packages: their import names; their sources are on the path.
    """
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imported = {
        importer: {
            name
            for name in graph.find_modules_directly_imported_by(importer)
            if name != importer and not _is_native(graph, importer, name)
        }
        for importer in graph.modules
    }
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


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
    """Prints the first circle that is found; returns 1 if there is one, else 0."""
    circle = find_circle(*packages)
    if circle:
        print("A circle of imports: " + " -> ".join(circle), file=sys.stderr)
    return int(bool(circle))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
