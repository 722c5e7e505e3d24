"""The pages of commands match their parsers."""

from pages.commands import FOLDER, pages


def test_pages_are_made_from_the_parsers():
    """`python tools/pages/commands.py` writes them."""
    written = {
        file.relative_to(FOLDER).as_posix(): file.read_text() for file in FOLDER.rglob("*.md")
    }
    assert written == pages()
