"""Valid values of environment variables."""

import functools
from pathlib import Path

import pytest

from npu_command import setting_values
from npu_runtime import InputError, NpuError

read_file, read_flag, read_folder, read_number = (
    functools.partial(getattr(setting_values, f"read_{kind}"), error=InputError)
    for kind in ("file", "flag", "folder", "number")
)


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_a_flag_is_on(text):
    assert read_flag({"X": text}, "X") is True


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_a_flag_is_off(text):
    assert read_flag({"X": text}, "X") is False


@pytest.mark.parametrize("values", [{}, {"X": ""}, {"X": " "}])
def test_a_flag_that_is_not_set_is_none(values):
    assert read_flag(values, "X") is None


@pytest.mark.parametrize("text", ["banana", "2", "-1", "1.0", "yes please", "\udcff"])
def test_another_text_is_no_flag(text):
    with pytest.raises(InputError, match="X must be 1 or 0") as caught:
        read_flag({"X": text}, "X")
    assert repr(text) in str(caught.value)
    assert caught.value.code == "bad-setting"


def test_a_number_is_read_and_has_a_default():
    assert read_number({"X": " 12 "}, "X", 3) == 12
    assert read_number({}, "X", 3) == 3


@pytest.mark.parametrize("text", ["", "-3", "many", "1.5", "1_000", "1e3", "١", "0", "9" * 5000])
def test_another_text_is_no_number(text):
    with pytest.raises(InputError, match="X must be a whole number of things, 1 or more") as caught:
        read_number({"X": text}, "X", 3, least=1, of="things")
    assert caught.value.code == "bad-setting"


def test_a_folder_need_not_exist(tmp_path):
    assert read_folder({"X": str(tmp_path / "a" / "b")}, "X") == tmp_path / "a" / "b"
    assert read_folder({"X": ""}, "X") is None
    assert read_folder({"X": "~/a"}, "X") == Path.home() / "a"


def test_a_path_through_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"{path}.*{tmp_path / 'file'} is not one") as caught:
            read_folder({"X": str(path)}, "X")
        assert caught.value.code == "bad-setting"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match=r"X must be a file, got .* which is a folder") as caught:
        read_file({"X": str(tmp_path)}, "X")
    assert caught.value.code == "bad-setting"


def test_a_file_lies_in_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    assert read_file({"X": str(tmp_path / "new")}, "X") == tmp_path / "new"
    assert read_file({}, "X") is None
    with pytest.raises(InputError, match="X must be a folder"):
        read_file({"X": str(tmp_path / "file" / "below")}, "X")


@pytest.mark.parametrize("text", ["a" * 300, "~nobody_of_this_name/x"])
def test_a_path_that_no_system_has_is_an_error(text):
    with pytest.raises(InputError, match="X must be a path, got") as caught:
        read_folder({"X": text}, "X")
    assert caught.value.code == "bad-setting"


def test_links_in_a_circle_are_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(InputError, match="X must be a folder"):
        read_folder({"X": str(tmp_path / "link")}, "X")
    with pytest.raises(InputError, match=r"X must be a path, got .*symbolic links"):
        read_folder({"X": str(tmp_path / "link" / "below")}, "X")


def test_the_error_is_of_the_class_that_the_package_names():
    class OwnError(NpuError):
        pass

    with pytest.raises(OwnError):
        read_flag({"X": "banana"}, "X", error=OwnError)


@pytest.mark.parametrize(
    "environment, folder",
    [
        ({"XDG_CACHE_HOME": "/c"}, "/c/npu"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/npu"),
        ({"XDG_CACHE_HOME": "beside"}, "~/.cache/npu"),  # else a cache per working directory
    ],
)
def test_caches_lie_where_the_desktops_conventions_say(environment, folder):
    assert setting_values.cache_directory("npu", environment) == Path(folder).expanduser()


def test_the_environment_is_the_processs_own_by_default(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/own")
    assert setting_values.cache_directory("npu") == Path("/own/npu")
