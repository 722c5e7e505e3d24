import os

from npu_llm.models import static_programs as module
from npu_llm.models.static_programs import fixed_path


def test_two_folders_have_one_path(tmp_path):
    seen = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "said").write_text(name)
        with fixed_path(tmp_path / name) as path:
            seen.append((path, (path / "said").read_text()))
    assert [text for _, text in seen] == ["a", "b"]
    assert seen[0][0] == seen[1][0]
    assert not seen[0][0].exists()


def test_descriptor_in_use_is_left_alone(tmp_path, monkeypatch):
    read, write = os.pipe()
    monkeypatch.setattr(module, "_NUMBER", read)
    with fixed_path(tmp_path) as path:
        assert path == tmp_path
    os.write(write, b"x")
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.close(write)
