"""Texts one a line: empty lines do not count, and a file of none is refused."""

from __future__ import annotations

import pytest

from npu_llm.cli.tasks.embed import read_lines
from npu_llm.errors import OptionError


def test_empty_lines_do_not_count(tmp_path):
    (tmp_path / "texts").write_text("one\n\n  two  \n")
    assert read_lines(str(tmp_path / "texts")) == ["one", "two"]


@pytest.mark.parametrize("content", [None, " \n\n"])
def test_file_without_texts_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "texts").write_text(content)
    with pytest.raises(OptionError, match="texts") as caught:
        read_lines(str(tmp_path / "texts"))
    assert caught.value.code == "text-lines"


def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "texts").write_bytes(b"pok\xe9mon\n")
    with pytest.raises(OptionError, match="UTF-8") as caught:
        read_lines(str(tmp_path / "texts"))
    assert caught.value.code == "text-encoding"
