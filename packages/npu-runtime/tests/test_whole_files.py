import json
import subprocess
import sys
from pathlib import Path

import pytest

from npu_command.whole_files import draft_of, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_takes_the_place_of_an_older_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("older")
    write_json(path, {"n": 1, "name": "ü"}, indent=1)
    assert json.loads(path.read_text()) == {"n": 1, "name": "ü"}
    assert names(tmp_path) == ["a.json"]


def test_text_is_utf8_whatever_the_locale_says(tmp_path):
    command = "from pathlib import Path; from npu_command.whole_files import write_text; "
    command += f"write_text(Path({str(tmp_path / 'a')!r}), chr(252))"
    source = Path(sys.modules["npu_command.whole_files"].__file__).parents[1]
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = str(source)
    subprocess.run([sys.executable, "-S", "-c", command], env=environment, check=True)
    assert (tmp_path / "a").read_bytes() == "ü".encode()


@pytest.mark.parametrize("value", [{"a": {1}}, {("a",): 1}])
def test_a_value_that_json_cannot_hold_leaves_the_older_file_and_no_draft(tmp_path, value):
    path = tmp_path / "a.json"
    path.write_text("older")
    with pytest.raises(TypeError):
        write_json(path, value)
    assert path.read_text() == "older"
    assert names(tmp_path) == ["a.json"]


def test_a_body_that_raises_leaves_the_older_file_and_no_draft(tmp_path):
    path = tmp_path / "a"
    path.write_text("older")

    def interrupted() -> None:
        with draft_of(path) as draft:
            draft.write_text("half")
            assert names(tmp_path) == [draft.name, "a"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "older"
    assert names(tmp_path) == ["a"]


def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch):
    def half(self, text, encoding=None):
        self.write_bytes(text.encode()[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "a.json", {"a": 1})
    assert names(tmp_path) == []


def test_a_folder_in_its_place_leaves_no_draft(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "a", "text")
    assert names(tmp_path) == ["a"]


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("n" * 255)
    write_text(path, "text")
    assert path.read_text() == "text"


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "absent" / "a", "text")
