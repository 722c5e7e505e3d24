import json
import sys

import pytest

from npu_llm.cli.tasks.pictures import looks_at_pictures, read_picture
from npu_llm.errors import OptionError


def test_what_reads_pictures_must_be_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match=r"npu-llm\[images\]") as caught:
        read_picture(tmp_path / "noise.png")
    assert caught.value.code == "missing-pillow"


def test_a_model_looks_if_it_has_eyes_and_their_processor(llava, tmp_path):
    assert looks_at_pictures(str(llava))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "vision_config": {}}))
    assert not looks_at_pictures(str(tmp_path))
    (tmp_path / "processor_config.json").write_text("{}")
    assert looks_at_pictures(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x"}))
    assert not looks_at_pictures(str(tmp_path))
