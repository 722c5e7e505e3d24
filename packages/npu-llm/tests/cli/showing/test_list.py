import json

import pytest

from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, find_installed_weights, find_source
from npu_llm.cli import main
from npu_llm.models.compile_cache import CompileCache


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A checkpoint that was started twice, one in the hub's cache, and an entry without source."""
    checkpoint = tmp_path / "here" / "tiny"
    snapshot = tmp_path / "hub" / "models--maker--tiny" / "snapshots" / "c0ffee"
    for folder in (checkpoint, snapshot):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(b"1" * 3_000_000)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("c0ffee")
    cache = CompileCache(tmp_path / "cache")
    for key, source, precision in (
        ("a-1111111111111111", checkpoint, "int8"),
        ("a-2222222222222222", checkpoint, "int4"),
        ("b-3333333333333333", tmp_path / "gone", "int8"),
    ):
        with cache.create(key) as folder:
            about = {"name": key, "source": str(source), "precision": precision}
            (folder / "about.json").write_text(json.dumps(about))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("NPU_LLM_CACHE_DIR", str(tmp_path / "cache"))
    return checkpoint


def test_models_of_all_places_are_listed_with_what_is_ready(places, capsys):
    assert main(["list"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "NAME SIZE READY USED"
    assert lines[1] == f"{places} 3 MB int4, int8 just now"
    size = find_installed_weights().path.stat().st_size
    assert sorted(lines[2:]) == sorted(
        [f"{DEFAULT_WEIGHTS} {size / 1e6:,.0f} MB - never", "maker/tiny 0 MB - never"]
    )
    assert main(["list", "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert (first["path"], first["precisions"]) == (str(places), ["int4", "int8"])


def test_the_installed_weights_are_a_model_by_their_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_source(DEFAULT_WEIGHTS) == find_installed_weights()
