import pytest

from npu_profiler.errors import TraceError
from npu_profiler.output_file import check_writable


def test_check_writable_refuses_a_missing_directory(tmp_path):
    path = tmp_path / "none" / "t.json"
    with pytest.raises(TraceError, match=r"none/t\.json.*\[output-unwritable\]") as caught:
        check_writable(path, "trace output")
    assert caught.value.code == "output-unwritable"


def test_check_writable_refuses_a_directory(tmp_path):
    with pytest.raises(TraceError) as caught:
        check_writable(tmp_path, "trace output")
    assert caught.value.code == "output-unwritable"


def test_check_writable_leaves_nothing_behind(tmp_path):
    assert check_writable(str(tmp_path / "t.json"), "picture") == tmp_path / "t.json"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 300])
def test_name_that_no_file_can_have(name):
    with pytest.raises(TraceError) as caught:
        check_writable(name, "--output")
    assert caught.value.code == "output-unwritable"
