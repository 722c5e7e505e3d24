from pathlib import Path

import pytest

from npu_llm.config import read_settings


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
