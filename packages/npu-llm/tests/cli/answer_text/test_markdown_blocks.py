import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_llm.cli.answer_text.markdown_blocks import MarkdownBlocks

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
    # What stands behind a fence is the name of a language.
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
