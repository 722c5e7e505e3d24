"""Markdown of an answer, in blocks as its pieces come, and as a terminal shows it."""

import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_llm.cli.markdown import MarkdownBlocks, MarkdownWriter

ANSWER = """# Title
Here:
- one
- two
  - inner

  of two
1. three

After
it.
```python
x = 1

```
| a |
|---|
| 1 |

"""
BLOCKS = [
    ("# Title", False), ("Here:", False), ("- one", False), ("- two\n  - inner\n\n  of two", True),
    ("1. three", True), ("After\nit.", False), ("x = 1", False), ("", True),
    ("| a |\n|---|\n| 1 |", False),
]  # fmt: skip


def blocks_of(*pieces):
    blocks = MarkdownBlocks()
    found = [block for piece in pieces for block in blocks.feed(piece)]
    return found + blocks.end()


def shown(*pieces):
    return [(block.text, block.follows) for block in blocks_of(*pieces)]


def test_an_answer_is_cut_where_its_blocks_end():
    assert shown(ANSWER) == BLOCKS


@given(st.lists(st.integers(0, len(ANSWER))))
def test_pieces_may_end_anywhere(places):
    edges = [0, *sorted(places), len(ANSWER)]
    assert shown(*(ANSWER[a:b] for a, b in itertools.pairwise(edges))) == BLOCKS


@given(st.lists(st.sampled_from([*"ab# -`~*|>1.\n\t", "```", "\n\n", "- ", "  "])))
def test_no_word_is_lost(pieces):
    whole, text = "".join(pieces), "".join(block.text for block in blocks_of(*pieces))
    # The text after a fence is the name of a language.
    fences = [line for line in whole.split("\n") if line.lstrip()[:3] in ("```", "~~~")]
    for sign in "ab":
        named = sum(line.count(sign) for line in fences)
        assert whole.count(sign) - named <= text.count(sign)


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_code_comes_line_by_line_and_knows_what_stands_above(fence):
    blocks = MarkdownBlocks()
    (first,) = blocks.feed(f"{fence}py\na = '''\n")
    (second,) = blocks.feed("# no comment\n")
    assert (first.language, second.code) == ("py", "a = '''\n# no comment\n")
    assert blocks.feed(f"{fence}\n") == []


def test_what_nobody_closed_ends_with_the_text():
    assert shown("```\nx = 1") == [("x = 1", False)]
    assert shown("**bold") == [("**bold", False)]
    assert shown("- a\n  ```\n  x\n") == [("- a\n  ```\n  x", False)]


_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Screen(io.StringIO):
    """A terminal that keeps its input."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(params=[60, 160])
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return request.param


@pytest.fixture
def write(width, monkeypatch):
    """write(pieces): the terminal's input, and the lines that it shows in the end."""

    def run(*pieces):
        screen = Screen()
        monkeypatch.setattr("sys.stdout", screen)
        writer = MarkdownWriter()
        for piece in pieces:
            writer.write(piece)
        writer.end()
        sent = screen.getvalue()
        lines = []
        for line in _STYLE.sub("", sent).split("\n"):
            assert len(max(line.split("\r\x1b[K"), key=len)) <= width
            lines.append(line.rpartition("\r\x1b[K")[2].rstrip())
        assert lines.pop() == "", "the prompt gets a line of its own"
        return sent, lines

    return run


def test_styles_lists_and_code_are_rendered(write):
    text = "Some **bold** text:\n- one\n- two\n1. three\n```py\nx = 1\n```\n"
    sent, lines = write(*text)
    assert lines == ["Some bold text:", "", " • one", " • two", " 1 three", "", "  x = 1"]
    assert "\x1b[1mbold\x1b[0m" in sent


def test_a_table_has_columns(write):
    _, lines = write("| a | long |\n|---|---|\n| 1 | two words |\n\nend")
    assert [re.sub(r"\s+", " ", line) for line in lines] == [
        " a long", " " + "─" * len(lines[1].strip()), " 1 two words", "", "end"
    ]  # fmt: skip


def test_lines_end_between_words(write, width):
    words = [f"word{number}" for number in range(60)]
    _, lines = write(*(f"{word} " for word in words))
    assert " ".join(lines).split() == words
    assert len(lines) == -(-len(" ".join(words)) // width) or len(lines) > 2


def test_html_is_text(write):
    _, lines = write("a List<int> and <br>\n\n<div>\nx\n</div>\n")
    assert lines[0] == "a List<int> and <br>"
    assert [line.strip() for line in lines[1:] if line.strip()] == ["<div>", "x", "</div>"]


def test_what_nobody_closed_is_shown(write):
    assert write("so **bold")[1] == ["so **bold"]
    assert write("| a |\n|--")[1][0].split()[0] in ("a", "|")
    assert write("```\nx = '")[1] == ["  x = '"]


def test_words_are_seen_before_their_block_is_complete(width, monkeypatch):
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    writer = MarkdownWriter()
    writer.write("The first ")
    writer.write("words")
    assert _STYLE.sub("", screen.getvalue()) == "The first words"


def test_nothing_is_written_for_an_empty_answer(write):
    assert write("")[1] == []
