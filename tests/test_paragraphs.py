"""The check of pages for walls of text notices them, and nothing else."""

import pytest

from pages.paragraphs import MOST_WORDS, main, too_long

LONG = "word " * (MOST_WORDS + 1)


@pytest.mark.parametrize(
    "text, lines",
    [
        (LONG, [1]),
        (f"# Title\n\n{LONG}\n", [3]),
        (f"- a\n- {LONG}\n- b\n", [2]),
        (f"| a | {LONG} |\n", [1]),
        (f"{'word ' * 60}\n\n{'word ' * 60}\n", []),
        (f"| {'word ' * 60} | {'word ' * 60} |\n", []),
        (f"```text\n{LONG}\n```\n", []),
    ],
)
def test_long_paragraphs_are_found(text, lines):
    assert [line for line, _ in too_long(text)] == lines


def test_the_line_and_its_words_are_printed(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(LONG)
    assert main([str(page)]) == 1
    assert f"{page}:1: {MOST_WORDS + 1} words" in capsys.readouterr().out
