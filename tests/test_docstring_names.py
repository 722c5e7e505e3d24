"""Names in docstrings and on pages: each module, attribute and file of ours that they name exists.

A full dotted name (`npu_ops.variants`, `torch.npu.memory`) is checked everywhere. A short one in
backticks (`timeline.Track`) is checked if its first part is a module next to the docstring's, or a
name that the module itself has. A source file is looked for from the docstring's folder upwards, to
the repository's root. What stands in double quotes is output, and what `python` runs is the
reader's: neither is a file of ours.
"""

import ast
import importlib
import importlib.util
import re
from functools import cache

import pytest

OURS = (
    "npu_command",
    "npu_compiler",
    "npu_llm",
    "npu_ops",
    "npu_profiler",
    "npu_runtime",
    "npu_runtime_autoload",
)
# Groups of entry points, which are named like modules.
GROUPS = {
    "npu_compiler.converters",
    "npu_compiler.targets",
    "npu_ops.program_builders",
    "npu_runtime.drivers",
    "npu_runtime.inductor",
    "npu_runtime.observers",
}
CHANGES_TORCH = "npu_runtime.transfer_to_npu"  # for the process that imports it
FULL = rf"(?<![\w./-])((?:{'|'.join(OURS)}|torch\.npu|torch\.ops\.npu)(?:\.[A-Za-z_]\w*)+)"
SHORT = r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`"
SOURCES = ("py", "pyi", "cpp", "h", "md", "toml")
FILE = rf"(?<![\w.*<>/-])(?<!python )(?!llama\.cpp)((?:[\w-]+/)*[\w-]+\.(?:{'|'.join(SOURCES)}))\b"


def modules(root):
    """Every module of the import packages: its dotted name and its file."""
    for package in OURS:
        (source,) = root.glob(f"packages/*/src/{package}")
        for file in sorted(source.rglob("*.py")):
            parts = file.relative_to(source.parent).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def documented(file):
    """Each docstring of a file, with the names of the arguments that it may speak of."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            arguments = {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)}
            yield text, arguments


@cache
def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # ValueError: `torch.ops`, a module without a spec
        return False


@cache
def resolves(name):
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if is_module(module):
            break
    else:
        return False
    if length == len(parts):
        return True
    found = importlib.import_module(module)
    if module == CHANGES_TORCH:
        found.deactivate()
    for part in parts[length:]:
        fields = getattr(found, "__annotations__", {})
        if not hasattr(found, part) and part not in fields:
            return False
        found = getattr(found, part, None)
    return True


def named(root, package, pattern):
    """Mentions in docstrings of a package: the module, its file, the mention, the arguments."""
    for module, file in modules(root):
        if module.split(".")[0] == package:
            for text, arguments in documented(file):
                for mention in re.findall(pattern, re.sub(r'"[^"\n]*"', "", text)):
                    yield module, file, mention, arguments


@pytest.mark.parametrize(
    "name, expected",
    [
        ("npu_command.errors", True),
        ("npu_runtime.ProgramError", True),
        ("npu_runtime.Program.run", True),
        ("torch.npu.memory_allocated", True),
        ("torch.ops.npu.rms_norm", True),
        ("npu_runtime.no_such_module", False),
        ("npu_runtime.Program.no_such_method", False),
        ("torch.npu.no_such_function", False),
    ],
)
def test_a_name_resolves_when_it_is_there(name, expected):
    assert resolves(name) is expected


@pytest.mark.parametrize("package", OURS)
def test_full_dotted_names_resolve(root, package):
    found = named(root, package, FULL)
    missing = [(m, name) for m, _, name, _ in found if name not in GROUPS and not resolves(name)]
    assert missing == []


def scopes(module, file):
    """Modules in which a short name may begin: next to a module, in it, or atop its package."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return {module, package, module.split(".")[0]}


@pytest.mark.parametrize("package", OURS)
def test_short_dotted_names_resolve(root, package):
    missing = []
    for module, file, name, arguments in named(root, package, SHORT):
        head, ending = name.split(".")[0], name.split(".")[-1]
        if head in {*arguments, *OURS} or ending in {*SOURCES, "html", "json"}:
            continue
        known = [scope for scope in scopes(module, file) if resolves(f"{scope}.{head}")]
        if known and not any(resolves(f"{scope}.{name}") for scope in known):
            missing.append((module, name))
    assert missing == []


@pytest.mark.parametrize("package", OURS)
def test_files_that_are_named_exist(root, package):
    missing = []
    for module, file, name, _ in named(root, package, FILE):
        places = [place for place in file.parents if place.is_relative_to(root)]
        if not any((place / name).is_file() for place in places):
            missing.append((module, name))
    assert missing == []


# Text of pages, without changelogs, which name moved objects.
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "packages/*/README.md")
# docs/guides/moving-from-cuda.md shows the error of a name that torch.npu does not have.
ABSENT = {"torch.npu.cudart"}


def pages(root):
    return [(page, page.read_text()) for pattern in PAGES for page in sorted(root.glob(pattern))]


def test_dotted_names_on_pages_resolve(root):
    found = [(page.name, name) for page, text in pages(root) for name in re.findall(FULL, text)]
    missing = [(page, n) for page, n in found if n not in GROUPS | ABSENT and not resolves(n)]
    assert missing == []


def test_paths_on_pages_exist(root):
    """Paths from the root, and from the package that a page belongs to."""
    missing = []
    for page, text in pages(root):
        for path in re.findall(r"(?<![\w/.-])(?:packages|tests|examples|tools)/[\w./-]*\w", text):
            inside = root.glob(f"packages/*/{path}")
            if not (root / path).exists() and not any(inside):
                missing.append((page.name, path))
    assert missing == []
