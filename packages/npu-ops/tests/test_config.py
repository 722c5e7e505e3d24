from pathlib import Path

import pytest

from npu_ops import config
from npu_ops.config import (
    TOOLS,
    read_memory_directory,
    read_settings,
    read_tool_lists,
    wrong_setting,
)
from npu_ops.errors import OperatorInputError


def test_without_variables_nothing_is_forced_or_forbidden() -> None:
    settings = read_settings({"XDG_CACHE_HOME": "/cache"})
    assert (settings.strict, settings.host_ops, settings.variants) == (False, (), "measured")
    assert settings.tune is None
    assert settings.records == Path("/cache/npu/op-records.json")


def test_variables_are_read() -> None:
    settings = read_settings(
        {
            "NPU_STRICT": "1",
            "NPU_FALLBACK_OPS": "aten.mm, aten.*norm*,",
            "NPU_OPS_VARIANT": "program",
            "NPU_OPS_TUNE": "0",
            "NPU_OPS_RECORDS": "/records.json",
            "NPU_OPS_PROGRAMS": "7",
        }
    )
    assert settings.strict
    assert settings.host_ops == ("aten.mm", "aten.*norm*")
    assert (settings.variants, settings.tune, settings.programs) == ("program", False, 7)
    assert settings.records == Path("/records.json")


@pytest.mark.parametrize(
    "name, value",
    [
        ("NPU_OPS_PROGRAMS", "0"),
        ("NPU_OPS_RECORDS", "/"),
        ("NPU_OPS_TUNE", "banana"),
        ("NPU_OPS_VARIANT", "fast"),
        ("NPU_STRICT", "banana"),
    ],
)
def test_a_value_that_a_setting_does_not_have_is_an_error(name: str, value: str) -> None:
    with pytest.raises(OperatorInputError, match=f"{name} must be .*got '{value}'") as caught:
        read_settings({name: value})
    assert caught.value.code == "bad-setting"


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_two_lists(tool: str) -> None:
    lists = read_tool_lists(tool, {f"OP_{tool}_LIST": "mm, add,", f"OP_{tool}_DISABLE_LIST": "sub"})
    assert (lists.names, lists.excluded) == (("mm", "add"), ("sub",))
    assert read_tool_lists(tool, {}).names == read_tool_lists(tool, {}).excluded == ()


def test_the_directory_for_memory_is_read() -> None:
    assert read_memory_directory({"NPU_OPS_MEMORY_DIR": "/m"}) == Path("/m")
    assert read_memory_directory({}) is None


def test_the_directory_for_memory_cannot_be_a_file() -> None:
    with pytest.raises(OperatorInputError, match="NPU_OPS_MEMORY_DIR must be a folder") as caught:
        read_memory_directory({"NPU_OPS_MEMORY_DIR": __file__})
    assert caught.value.code == "bad-setting"


def test_the_first_wrong_setting_of_either_package_is_named(monkeypatch) -> None:
    assert wrong_setting() is None
    monkeypatch.setenv("NPU_OPS_MEMORY_DIR", __file__)
    assert str(wrong_setting()).startswith("NPU_OPS_MEMORY_DIR must be ")
    monkeypatch.setenv("NPU_STRICT", "banana")
    assert str(wrong_setting()).startswith("NPU_STRICT must be ")
    of_the_runtime = OperatorInputError("NPU_SANITIZER: wrong.", code="bad-setting")
    monkeypatch.setattr(config, "problem", of_the_runtime)
    assert wrong_setting() is of_the_runtime
