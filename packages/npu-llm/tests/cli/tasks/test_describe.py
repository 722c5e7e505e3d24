import json
import sys

import pytest
import transformers
from PIL import Image

from npu_llm import NPUModelForImageTextToText
from npu_llm.cli.tasks.describe import read_image, reads_images
from npu_llm.errors import OptionError


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Two image files, and one without an image."""
    folder = tmp_path_factory.mktemp("images")
    Image.effect_noise((40, 50), 90).convert("RGB").save(folder / "noise.png")
    Image.new("RGBA", (30, 30), (200, 10, 10, 255)).save(folder / "red.png")
    (folder / "text.png").write_text("no image")
    return folder


@pytest.fixture
def run(llava, run_task, shared):
    shared.load(NPUModelForImageTextToText, llava, dtype="float32")
    return lambda *arguments, model=llava: run_task("describe", model, *arguments)


@pytest.mark.parametrize("beams", [None, 3])
def test_the_answer_is_that_of_transformers(run, llava, images, beams):
    files = [images / "noise.png", images / "red.png"]
    more = () if beams is None else ("--beams", beams)
    code, out, err = run("--max-new-tokens", 9, *more, *files, "what is this ?")
    assert code == 0, err
    assert "first token after" in err
    model = transformers.LlavaForConditionalGeneration.from_pretrained(llava)
    processor = transformers.AutoProcessor.from_pretrained(llava)
    content = [{"type": "image", "image": Image.open(file).convert("RGB")} for file in files]
    content.append({"type": "text", "text": "what is this ?"})
    given = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    assert given["pixel_values"].shape == (2, 3, 28, 28)
    found = model.generate(**given, max_new_tokens=9, num_beams=beams or 1)
    answer = found[0, given["input_ids"].shape[1] :]
    assert out == processor.tokenizer.decode(answer, skip_special_tokens=True) + "\n"


@pytest.mark.parametrize("name", ["text.png", "absent.png"])
def test_a_file_without_an_image_is_refused(run, images, name):
    exit_code, out, err = run(images / name, "what is this ?")
    assert exit_code != 0
    assert out == ""
    assert name in err
    assert err.rstrip().endswith("[image-unreadable]")


def test_question_must_not_be_blank(run, images):
    code, _, err = run(images / "red.png", " ")
    assert code != 0
    assert "[empty-prompt]" in err


def test_model_without_processor_is_refused(run, images, llava, tmp_path):
    for file in llava.iterdir():
        if "processor" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    code, _, err = run(images / "red.png", "what is this ?", model=tmp_path)
    assert code != 0
    assert "must come with a processor" in err
    assert err.rstrip().endswith("[missing-processor]")


def test_what_reads_images_must_be_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match=r"npu-llm\[images\]") as caught:
        read_image(tmp_path / "noise.png")
    assert caught.value.code == "missing-pillow"


def test_a_model_looks_if_it_has_eyes_and_their_processor(llava, tmp_path):
    assert reads_images(str(llava))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "vision_config": {}}))
    assert not reads_images(str(tmp_path))
    (tmp_path / "processor_config.json").write_text("{}")
    assert reads_images(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x"}))
    assert not reads_images(str(tmp_path))
