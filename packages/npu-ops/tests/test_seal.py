"""Sealed documents: whole ones are read, all others are damaged."""

import json

import pytest

from npu_ops.errors import DamagedFileError
from npu_ops.seal import check_file, digest, read_sealed, seal

DOCUMENT = {"sizes": (1, 2), "share": 0.1, "loss": float("nan"), "names": {"10": "b", "9": "a"}}


def test_what_was_sealed_is_read_again(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(seal(DOCUMENT, {"data": digest(b"x")}), indent=2))
    document, is_sealed = read_sealed(file)
    assert is_sealed
    assert document["sizes"] == [1, 2]
    check_file(document, tmp_path / "data", b"x")


@pytest.mark.parametrize("name, data", [("data", b"y"), ("data", b""), ("other", b"x")])
def test_a_file_that_was_not_sealed_is_damaged(tmp_path, name, data):
    document = seal(DOCUMENT, {"data": digest(b"x")})
    with pytest.raises(DamagedFileError, match=f"{name}` must match its checksum") as error:
        check_file(document, tmp_path / name, data)
    assert error.value.code == "file-damaged"


def test_a_changed_value_is_damage_and_changed_space_is_not(tmp_path):
    file = tmp_path / "a.json"
    text = json.dumps(seal(DOCUMENT, {}))
    file.write_text(text.replace(" ", "  "))
    assert read_sealed(file)[1]
    file.write_text(text.replace("0.1", "0.2"))
    with pytest.raises(DamagedFileError, match="its text has another checksum"):
        read_sealed(file)


def test_a_document_without_a_checksum_is_not_sealed(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    assert read_sealed(tmp_path / "a.json") == ([1], False)
