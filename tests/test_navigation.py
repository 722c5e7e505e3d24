"""Navigation of the documentation: each page is listed once, and a door page links each guide."""

import re

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


def links(docs, page):
    text = (docs / page).read_text()
    found = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", text)
    linked = [((docs / page).parent / target).resolve() for target in found]
    return {path.relative_to(docs).as_posix() for path in linked if path.is_relative_to(docs)}


def test_each_page_stands_once_in_the_navigation(root, pages):
    navigation = yaml.safe_load((root / "mkdocs.yml").read_text())["nav"]
    assert sorted(targets(navigation)) == sorted(pages)


def test_each_guide_answers_a_question_behind_one_of_the_doors(root, pages):
    doors = {page for page in pages if page.startswith("doors/")}
    assert doors <= links(root / "docs", "index.md")
    answers = set()
    for door in doors:
        table = re.findall(r"^\|.*\|$", (root / "docs" / door).read_text(), flags=re.MULTILINE)
        answers |= set(re.findall(r"\]\(\.\./(guides/[^)#]+)", "\n".join(table)))
    assert answers == {page for page in pages if page.startswith("guides/")}
