"""Settings from the environment."""

import pytest

from npu_runtime import InputError
from npu_runtime.config import RuntimeConfig

FLAGS = {
    "NPU_ATTACH": "attach",
    "NPU_LAUNCH_BLOCKING": "launch_blocking",
    "NPU_MEMORY_CHECK": "memory_check",
    "NPU_PROFILE_LAYERS": "profile_layers",
    "NPU_SANITIZER": "sanitizer",
}


def test_without_variables_everything_is_off():
    assert RuntimeConfig.from_environment({}) == RuntimeConfig()


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_flags_are_read(name):
    assert RuntimeConfig.from_environment({name: "1"}) == RuntimeConfig(**{FLAGS[name]: True})
    assert RuntimeConfig.from_environment({name: "off"}) == RuntimeConfig()


def test_hugging_face_is_told_unless_it_is_switched_off():
    for text, is_told in (("", True), ("1", True), ("0", False)):
        assert RuntimeConfig.from_environment({"NPU_HUGGINGFACE": text}).hugging_face is is_told


def test_whether_npu_is_chosen_can_be_left_open():
    for text, chosen in (("", None), ("1", True), ("no", False)):
        assert RuntimeConfig.from_environment({"NPU_AUTO": text}).auto is chosen


@pytest.mark.parametrize("name", [*sorted(FLAGS), "NPU_AUTO", "NPU_HUGGINGFACE"])
def test_another_text_than_a_flags_is_an_error(name):
    with pytest.raises(InputError, match=f"{name} must be .*got 'banana'") as caught:
        RuntimeConfig.from_environment({name: "banana"})
    assert caught.value.code == "bad-setting"


def test_a_snapshot_cannot_be_a_folder(tmp_path):
    with pytest.raises(InputError, match="NPU_OOM_SNAPSHOT must be a file") as caught:
        RuntimeConfig.from_environment({"NPU_OOM_SNAPSHOT": str(tmp_path)})
    assert caught.value.code == "bad-setting"


def test_a_library_is_a_file(tmp_path):
    read = RuntimeConfig.from_environment({"NPU_OPENVINO_LIBRARY": str(tmp_path / "lib.so")})
    assert read.openvino_library == str(tmp_path / "lib.so")
    with pytest.raises(InputError, match="NPU_OPENVINO_LIBRARY must be a file") as caught:
        RuntimeConfig.from_environment({"NPU_OPENVINO_LIBRARY": str(tmp_path)})
    assert caught.value.code == "bad-setting"


def test_names_are_read_without_blanks():
    read = RuntimeConfig.from_environment({"NPU_DEVICE": " CPU ", "NPU_DRIVER": "sim"})
    assert (read.device, read.driver) == ("CPU", "sim")
