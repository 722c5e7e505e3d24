import json

import pytest

import npu_llm
from npu_compiler.quantize import gptq
from npu_llm import NPUModelForCausalLM
from npu_llm.cli import main
from npu_llm.models.entry import MANIFEST, REFERENCE, STEP_WEIGHTS
from npu_llm.verification.reference import read_reference
from npu_ops.kernel_programs.weights import PackedLinear, read_weights


def packed_weights(folder):
    weights = read_weights(folder / STEP_WEIGHTS).values()
    return [
        weight
        for weight in weights
        if isinstance(weight, PackedLinear) and weight.scales is not None
    ]


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_exported_folder_serves_as_model(run, checkpoint, shared, tmp_path):
    folder = tmp_path / "out"
    code, out, err = run("export", checkpoint, "-o", folder, "--dtype", "int8")
    assert (code, out) == (0, f"{folder}\n")
    assert "MB in int8" in err
    asked = ("--greedy", "--max-new-tokens", "5", "the quick")
    code, answer, err = run("generate", "--model", folder, *asked)
    assert code == 0
    assert "started from the compile cache" in err
    shared.load(NPUModelForCausalLM, checkpoint, dtype="int8")
    place = ("--cache-dir", shared.cache_dir(checkpoint))
    again = run("generate", "--model", checkpoint, "--dtype", "int8", *place, *asked)
    assert again[1] == answer


def test_interrupted_rounding_by_a_text_goes_on(wide, tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_LLM_CACHE_DIR", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog " * 20)
    rounded, told = gptq._rounded, []

    def rounding(*arguments):
        if len(told) == 3:
            raise KeyboardInterrupt
        told.append(arguments)
        return rounded(*arguments)

    def write():
        how = {"dtype": "int4", "pipeline": "kernels", "group_size": 32, "data": text}
        return npu_llm.export(wide, tmp_path / "out", on_progress=listener, **how)

    def listener(stage, share):
        doing.add((stage.name, stage.doing))

    doing = set()
    monkeypatch.setattr(gptq, "_rounded", rounding)
    with pytest.raises(KeyboardInterrupt):
        write()
    (kept,) = (tmp_path / "cache").glob(".rounding-*")
    assert len(list(kept.iterdir())) == 3
    total = 14  # of two layers
    assert ("compress", f"weight 3 of {total}") in doing
    told = [None] * 4  # raises no more
    assert (write() / STEP_WEIGHTS).is_file()
    assert len(told) - 4 == total - 3
    assert not kept.exists()


def test_folder_that_is_there_already(run, checkpoint, tmp_path):
    code, out, err = run("export", checkpoint, "-o", tmp_path.parent)
    assert (code, out) == (2, "")
    assert "[output-exists]" in err


def test_quantizing_writes_weights_of_four_bits(run, checkpoint, tmp_path):
    sizes = {}
    for symmetric in (False, True):
        folder = tmp_path / str(symmetric)
        how = ["--pipeline", "kernels", "--group-size", "32"]
        how += ["--symmetric"] if symmetric else []
        assert run("quantize", checkpoint, "-o", folder, *how)[0] == 0
        about = json.loads((folder / MANIFEST).read_text())["about"]
        assert about["precision"] == "int4"
        kinds = {weight.kind for weight in packed_weights(folder)}
        assert "int4" in kinds
        assert symmetric == all(weight.zeros is None for weight in packed_weights(folder))
        sizes[symmetric] = (folder / "step.safetensors").stat().st_size
    assert sizes[True] < sizes[False]


@pytest.mark.parametrize("symmetric", [False, True])
def test_kernels_have_the_integers_that_a_text_gave(
    run, wide, tmp_path, symmetric, openvino_pipeline
):
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog " * 40)
    how = ("--group-size", "32", *(["--symmetric"] if symmetric else []))
    kinds = {
        "kernels": ("--pipeline", "kernels", "--data", text),
        "openvino": ("--pipeline", openvino_pipeline, "--data", text),
    }
    if not symmetric:
        kinds["nearest"] = ("--pipeline", "kernels")
    logits = {}
    for name, options in kinds.items():
        assert run("quantize", wide, "-o", tmp_path / name, *how, *options)[0] == 0
        logits[name] = read_reference(tmp_path / name / REFERENCE).logits
    # Scales are rounded to float16; the integers are the same.
    size = logits["openvino"].norm()
    assert (logits["kernels"] - logits["openvino"]).norm() < 0.002 * size
    if not symmetric:
        assert (logits["nearest"] - logits["openvino"]).norm() > 0.02 * size
    kind = b"i4" if symmetric else b"u4"
    assert kind in (tmp_path / "openvino" / "step.xml").read_bytes()
    packed = packed_weights(tmp_path / "kernels")
    assert {(one.kind, one.group) for one in packed} == {("int4", 32), ("int8", 0)}
    assert symmetric == all(one.zeros is None for one in packed)
    code, _, err = run("generate", "--model", tmp_path / "kernels", "--greedy", "the quick")
    assert code == 0
    assert "kernels" in err


@pytest.mark.parametrize("content", ["short", b"\xff\xfe\x00", None])
def test_text_that_cannot_serve(run, checkpoint, tmp_path, content):
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, err = run("quantize", checkpoint, "-o", tmp_path / "out", "--data", text)
    assert code == 2
    assert "[quantize-text]" in err
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.glob(".*")) == []


def test_text_beside_int8(run, checkpoint, tmp_path):
    how = ("--dtype", "int8", "--data", tmp_path / "text")
    code, _, err = run("quantize", checkpoint, "-o", tmp_path / "out", *how)
    assert code == 2
    assert "[quantize-text]" in err


def test_group_size_that_no_kernel_has(run, checkpoint, tmp_path):
    code, _, err = run("quantize", checkpoint, "-o", tmp_path / "out", "--group-size", "48")
    assert code == 2
    assert "[group-size]" in err
    assert "48" in err


def test_a_model_of_images_and_text_is_no_kernel_program(run, llava, tmp_path):
    code, _, err = run("export", llava, "-o", tmp_path / "other", "--pipeline", "kernels")
    assert code == 2
    assert "kernels" in err
