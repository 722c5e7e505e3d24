"""Navigation of the documentation: each page is listed once."""

import pytest
import yaml


@pytest.fixture(scope="module")
def pages(root):
    docs = root / "docs"
    return {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


def targets(entry):
    """The pages of an entry of the navigation: a page, or a mapping from titles to entries."""
    if isinstance(entry, str):
        return [entry]
    below = entry.values() if isinstance(entry, dict) else entry
    return [page for item in below for page in targets(item)]


def test_each_page_stands_once_in_the_navigation(root, pages):
    navigation = yaml.safe_load((root / "mkdocs.yml").read_text())["nav"]
    assert sorted(targets(navigation)) == sorted(pages)
