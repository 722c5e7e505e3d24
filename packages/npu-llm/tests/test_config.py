from pathlib import Path

import pytest

from npu_llm.config import read_settings
from npu_llm.errors import OptionError


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({"NPU_LLM_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/c"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/npu-llm")),
        ({}, Path.home() / ".cache" / "npu-llm"),
    ],
)
def test_cache_directory(environment, expected):
    assert read_settings(environment).cache_dir == expected


def test_cache_directory_cannot_be_a_file():
    with pytest.raises(OptionError, match="NPU_LLM_CACHE_DIR must be a folder") as caught:
        read_settings({"NPU_LLM_CACHE_DIR": __file__})
    assert caught.value.code == "bad-setting"
