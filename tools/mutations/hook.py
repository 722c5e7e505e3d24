"""Import hook: reports which tests reach drawn lines, or changes one of them for a process.

Copied into an environment's site-packages, where a .pth file imports it at each start. It is
inactive unless NPU_MUTATIONS names a table. With NPU_MUTATION_HITS, a folder, each process appends
the number of a reached mutation and the running test; with NPU_MUTANT, a number, that line of
Python is replaced before its module is compiled. C++ reads the same variables (switch.h).
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path

_SEEN = set()
_HITS = os.environ.get("NPU_MUTATION_HITS", "")  # a forked process may have another environment


def hit(number):
    """Records that the running test, or an import outside of tests, reached a mutation's line."""
    key = number, os.environ.get("PYTEST_CURRENT_TEST", "import").rsplit(" ", 1)[0]
    if key not in _SEEN:
        _SEEN.add(key)
        place = Path(_HITS) / str(os.getpid())
        with place.open("a") as file:
            file.write(f"{number}\t{key[1]}\n")


def place_of(row, lines):
    """Returns the index of a mutation's line, even if other lines have moved."""
    places = [at for at, line in enumerate(lines) if line == row["before"]]
    if not places:
        raise SystemExit(f"mutation {row['number']} does not apply to {row['file']}")
    return min(places, key=lambda at: abs(at + 1 - row["line"]))


class _Loader(importlib.machinery.SourceFileLoader):
    rows = ()

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        lines = self.get_data(path).decode().split("\n")
        if (chosen := os.environ.get("NPU_MUTANT")) is not None:
            for row in self.rows:
                if row["number"] == int(chosen):
                    lines[place_of(row, lines)] = row["after"]
            return compile("\n".join(lines), path, "exec", dont_inherit=True)
        tree = ast.parse("\n".join(lines), path)
        for row in self.rows:
            _insert_hit(tree, row)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _insert_hit(tree, row):
    line, best = row["line"], None
    for parent in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(parent, field, None)
            for index, node in enumerate(body if isinstance(body, list) else ()):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                inside = first <= line <= node.end_lineno
                if inside and (best is None or first >= best[2]):
                    best = body, index, first
        for handler in getattr(parent, "handlers", ()):  # an except clause reads the handler's type
            if handler.lineno == line:
                best = handler.body, 0, line
    body, index, _ = best
    call = ast.parse(f"__npu_mutation_hit__({row['number']})").body[0]
    for part in ast.walk(call):
        if hasattr(part, "lineno"):
            part.lineno = part.end_lineno = line
    body.insert(index, call)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, rows):
        self.modules = {}
        for row in rows:
            if row["file"].endswith(".py"):
                name = row["file"].split("/src/")[1].removesuffix(".py").removesuffix("/__init__")
                self.modules.setdefault(name.replace("/", "."), []).append(row)

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            loader = _Loader(spec.loader.name, spec.loader.path)
            loader.rows = self.modules[fullname]
            spec.loader = loader
        return spec


if "NPU_MUTATIONS" in os.environ and {"NPU_MUTANT", "NPU_MUTATION_HITS"} & {*os.environ}:
    builtins.__npu_mutation_hit__ = hit
    sys.meta_path.insert(0, _Finder(json.loads(Path(os.environ["NPU_MUTATIONS"]).read_text())))
