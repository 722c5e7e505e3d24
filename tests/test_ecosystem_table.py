"""The page with versions of other libraries names the ones that `nox -s ecosystem` installs."""

import importlib.util
import re
import tomllib


def table(root):
    spec = importlib.util.spec_from_file_location("table", root / "tools/ecosystem_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SHOWN


def test_every_library_of_the_session_is_in_the_table_and_on_the_page(root):
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    installed = {re.match(r"[\w-]+", need)[0] for need in groups["ecosystem"]}
    shown = table(root)
    assert installed <= shown.keys()
    page = (root / "docs/reference/ecosystem.md").read_text()
    rows = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+)[\w+]* \|", page, flags=re.MULTILINE))
    assert rows.keys() == {"torch", *shown}
