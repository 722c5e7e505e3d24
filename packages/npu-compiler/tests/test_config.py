"""Settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_compiler.config import read_settings
from npu_compiler.errors import OptionError


def test_cache_lies_under_the_xdg_directory():
    assert read_settings({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/npu")
    assert read_settings({}).cache_dir == Path("~/.cache/npu").expanduser()


def test_cache_directory_can_be_given():
    assert read_settings({"NPU_COMPILE_CACHE_DIR": "/y"}).cache_dir == Path("/y")


@pytest.mark.parametrize("value", ["", "-3", "many"])
def test_size_must_be_a_whole_number(value):
    with pytest.raises(OptionError) as error:
        read_settings({"NPU_COMPILE_CACHE_SIZE_MB": value})
    assert error.value.code == "bad-setting"
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "name", ["NPU_COMPILE_CACHE_DIR", "NPU_COMPILE_DEBUG", "NPU_COMPILE_TMPDIR"]
)
def test_a_folder_cannot_be_a_file(name):
    with pytest.raises(OptionError, match=f"{name} must be a folder, got '{__file__}'") as error:
        read_settings({name: __file__})
    assert error.value.code == "bad-setting"


def test_the_folder_for_temporary_files_must_exist(tmp_path):
    assert read_settings({"NPU_COMPILE_TMPDIR": str(tmp_path)}).temporary_dir == tmp_path
    with pytest.raises(OptionError, match="NPU_COMPILE_TMPDIR must be an existing folder") as error:
        read_settings({"NPU_COMPILE_TMPDIR": str(tmp_path / "absent")})
    assert error.value.code == "bad-setting"


def test_dumps_are_written_where_a_directory_is_named():
    assert read_settings({"NPU_COMPILE_DEBUG": "/d"}).debug_dir == Path("/d")
    assert read_settings({}).debug_dir is None
