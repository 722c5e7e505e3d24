"""The page of nox sessions lists all of them, and other pages name none that does not exist."""

import ast
import re

import pytest

PAGE = "docs/contributing/sessions.md"


@pytest.fixture(scope="module")
def sessions(root):
    """The names of all sessions, read from the files that define them."""
    found = set()
    for file in (root / "noxfile.py", *(root / "tools/sessions").glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(one).startswith("nox.session") for one in node.decorator_list
            ):
                found.add(node.name)
    return found


def test_all_modules_with_sessions_are_imported_by_noxfile(root):
    imported = {
        alias.name
        for node in ast.parse((root / "noxfile.py").read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module == "sessions"
        for alias in node.names
    }
    modules = {
        file.stem
        for file in (root / "tools/sessions").glob("*.py")
        if re.search(r"^@nox\.session", file.read_text(), flags=re.MULTILINE)
    }
    assert imported == modules


def test_page_of_sessions_is_complete(root, sessions):
    rows = re.findall(r'^\| `nox -s "?(\w+)', (root / PAGE).read_text(), flags=re.MULTILINE)
    assert sessions == set(rows)
    assert len(sessions) > 20


def test_sessions_that_pages_name_exist(root, sessions):
    files = [root / "README.md", root / "CONTRIBUTING.md", root / ".ci/run"]
    for pattern in ("docs/**/*.md", "packages/*/README.md", ".github/**/*.yml", ".github/*.md"):
        files += root.glob(pattern)
    unknown = {
        (file.relative_to(root).as_posix(), name)
        for file in files
        for names in re.findall(r"nox -s ((?:[a-z_]+ ?)+|\"[a-z_]+)", file.read_text())
        for name in names.strip('"').split()
        if name not in sessions
    }
    assert unknown == set()
