"""The lint of phrases finds them in pages, docstrings, comments and messages, and nothing else."""

import pytest

from prose import main, texts


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.md", "# What it holds\n", "name the thing"),
        ("a.md", "A file beside it.\n", "next to"),
        ("a.py", '"""Where it stands."""\n', "write is"),
        ("a.py", "x = 1  # lies elsewhere\n", "write is"),
        ("a.py", 'raise ValueError("it lies beside")\n', "next to"),
        ("a.py", 'log(f"it lies {there}")\n', "write is"),
        ("a.py", 'add(help="a file beside it")\n', "next to"),
        ("a.cpp", "// What it holds.\n", "name the thing"),
        ("a.cpp", 'throw Error("it lies beside");\n', "next to"),
        ("a.md", "It tells what it told, and says what it said.\n", "'speak' per 10,000"),
    ],
)
def test_planted_phrases_fail(tmp_path, capsys, name, text, words):
    (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name)]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.md", "# Fields\n\nWhat is a [block](what.md)? `beside`\n\n```text\nbeside\n```\n"),
        ("a.py", '"""The fields."""\nwhat = "beside"\n'),
        ("a.cpp", 'auto url = "https://beside";\n'),
    ],
)
def test_code_and_plain_words_pass(tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name)]) == 0
    assert not capsys.readouterr().out


def test_a_line_is_that_of_the_phrase(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("---\ntags: x\n---\n\none\n")
    assert [(line, words.strip()) for _, line, words in texts(page)][-1] == (5, "one")
