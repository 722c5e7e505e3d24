"""Example inputs for tracing, created from a model's signature."""

import json
import sys

import numpy as np
import pytest
import torch
import transformers

from npu_llm import (
    NPUAutoModel,
    NPUModelForFeatureExtraction,
    NPUModelForImageClassification,
    NPUModelForSeq2SeqLM,
)
from npu_llm.cli import main
from npu_llm.errors import CaptureError, OptionError
from npu_llm.models.entry import MANIFEST
from npu_llm.tasks.building import make_example


class _Foreign(torch.nn.Module):
    def forward(self, graph):
        return graph


def test_model_that_reads_something_else_is_refused():
    with pytest.raises(CaptureError, match="graph") as caught:
        make_example(_Foreign())
    assert caught.value.code == "model-inputs"


TEXTS = ["the cat sat on the mat", "where is bob", "anna lives in paris", "who was it", "a dog"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory, checkpoint):
    """A BERT with rows long enough for groups of weights, and a tokenizer."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=40, pad_token_id=0,
    )  # fmt: skip
    transformers.BertModel(config).eval().save_pretrained(folder)
    narrow = checkpoint("bert", transformers.AutoModel)
    transformers.AutoTokenizer.from_pretrained(narrow).save_pretrained(folder)
    return folder


@pytest.fixture
def quantize(capsys):
    """quantize(model, output, *options): exit code, and output."""

    def run(model, output, *options):
        arguments = [str(one) for one in (model, "-o", output, *options)]
        code = main(["quantize", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def _error(folder, wide):
    """Distance of token vectors from transformers', relative to their size."""
    tokens = transformers.AutoTokenizer.from_pretrained(wide)(
        ["bob lives in london", "the cat"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = transformers.AutoModel.from_pretrained(wide).eval()(**tokens)[0]
    found = NPUAutoModel.from_pretrained(folder)(**tokens)[0]
    mask = tokens["attention_mask"].bool()
    return float((found - expected)[mask].norm() / expected[mask].norm())


@pytest.mark.long
def test_int4_by_texts_is_nearer_than_to_nearest(wide, tmp_path, quantize):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    plain = ("--dtype", "int4", "--group-size", "32")
    assert quantize(wide, tmp_path / "nearest", *plain)[0] == 0
    assert quantize(wide, tmp_path / "data", *plain, "--data", texts)[0] == 0
    nearest, by_texts = (_error(tmp_path / name, wide) for name in ("nearest", "data"))
    assert by_texts < 0.9 * nearest < 0.3
    coarse = ("--dtype", "int4", "--group-size", "128", "--symmetric")
    assert quantize(wide, tmp_path / "coarse", *coarse)[0] == 0
    assert nearest < _error(tmp_path / "coarse", wide)


def test_int8_by_texts_makes_activations_int8(wide, tmp_path, quantize):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    assert quantize(wide, tmp_path / "full", "--dtype", "int8", "--data", texts)[0] == 0
    assert b"FakeQuantize" in (tmp_path / "full" / "program" / "model.xml").read_bytes()
    assert _error(tmp_path / "full", wide) < 0.1
    assert quantize(wide, tmp_path / "weights", "--dtype", "int8")[0] == 0
    assert b"FakeQuantize" not in (tmp_path / "weights" / "program" / "model.xml").read_bytes()
    assert _error(tmp_path / "weights", wide) < 0.02


@pytest.mark.long
def test_int8_by_images_that_a_file_names(checkpoint, tmp_path, quantize):
    from PIL import Image

    folder = checkpoint("vit", transformers.AutoModelForImageClassification)
    prepare = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    prepare.save_pretrained(folder)
    draws = np.random.default_rng(1)
    for number in range(6):
        pixels = draws.integers(0, 255, (40, 36, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    (tmp_path / "images.txt").write_text("\n".join(f"{number}.png" for number in range(6)))
    how = ("--dtype", "int8", "--data", tmp_path / "images.txt")
    code, said = quantize(folder, tmp_path / "out", *how)
    assert code == 0, said
    given = prepare(Image.open(tmp_path / "0.png"), return_tensors="pt")
    reference = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = reference(**given).logits
    found = NPUModelForImageClassification.from_pretrained(tmp_path / "out")(**given).logits
    assert float((found - expected).norm() / expected.norm()) < 0.2


@pytest.mark.long
def test_encoder_and_decoder_are_rounded_to_nearest_only(tmp_path, quantize):
    torch.manual_seed(1)
    config = transformers.T5Config(
        vocab_size=97, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    code, said = quantize(tmp_path / "t5", tmp_path / "out", "--dtype", "int8")
    assert code == 0, said
    model = NPUModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.precision.name == "int8"
    for option in (("--data", "texts.txt"), ("--group-size", "32"), ("--symmetric",)):
        code, said = quantize(tmp_path / "t5", tmp_path / "other", *option)
        assert code == 2
        assert option[0] in said
        assert said.rstrip().endswith("[export-option]")


def test_options_of_language_models_are_refused(wide, tmp_path, quantize):
    code, said = quantize(wide, tmp_path / "out", "--pipeline", "static")
    assert (code, said.rstrip().rpartition(" ")[2]) == (2, "[export-option]")
    code, said = quantize(wide, tmp_path / "out", "--group-size", "48")
    assert (code, said.rstrip().rpartition(" ")[2]) == (2, "[group-size]")
    assert not (tmp_path / "out").exists()


def test_calls_that_nothing_comes_of_are_refused(wide, tmp_path):
    ids = {"input_ids": torch.tensor([[2, 5, 3]])}
    for dtype, calls, code in (
        ("float32", [ids], "quantize-inputs"),
        ("int8", [], "quantize-inputs"),
        ("int4", [{"pixel_values": torch.zeros(1, 3, 8, 8)}], "input-name"),
        ("int4", [{"input_ids": torch.tensor([[2, 99]])}], "token-range"),
    ):
        with pytest.raises(OptionError) as caught:
            NPUModelForFeatureExtraction.export(wide, tmp_path / "out", dtype=dtype, inputs=calls)
        assert caught.value.code == code
        assert not (tmp_path / "out").exists()


def test_without_nncf_it_is_named(wide, tmp_path, monkeypatch, quantize):
    monkeypatch.setitem(sys.modules, "nncf", None)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    how = ("--dtype", "int8", "--data", tmp_path / "texts.txt")
    code, said = quantize(wide, tmp_path / "out", *how)
    assert (code, said.rstrip().rpartition(" ")[2]) == (2, "[quantize-library]")


def test_export_writes_an_encoder_in_any_precision(wide, tmp_path, capsys):
    code = main(["export", str(wide), "-o", str(tmp_path / "out"), "--dtype", "float32"])
    assert (code, capsys.readouterr().out) == (0, f"{tmp_path / 'out'}\n")
    about = json.loads((tmp_path / "out" / MANIFEST).read_text())["about"]
    assert (about["task"], about["precision"]) == ("AutoModel", "float32")
    assert _error(tmp_path / "out", wide) < 1e-4
