import argparse

import pytest
from PIL import Image

from npu_llm import NPUModelForImageTextToText
from npu_llm.cli.tasks.image_chat import ImageSession
from npu_llm.vision_language.prompting import load_processor


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "noise.png"
    Image.effect_noise((40, 50), 90).convert("RGB").save(path)
    return path


def test_a_image_is_shown_with_the_next_question(command, llava, image, shared):
    shared.load(NPUModelForImageTextToText, llava, dtype="float32")
    lines = ["/image", "/image absent.png", f"/image {image}", "what is this ?", "/undo"]
    lines += [
        "/retry",
        "/model",
        "/set max_new_tokens 3",
        "and that ?",
        "/system be brief",
        "/reset",
        "this ?",
        "/help",
    ]
    options = ("--greedy", "--max-new-tokens", "5", "--dtype", "float32")
    done = command("chat", *options, model=llava, text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert "Name the file" in done.stderr
    assert "[image-unreadable]" in done.stderr
    assert "is part of the next question" in done.stderr
    assert "Forgotten: what is this ?" in done.stderr
    assert "There is no question yet." in done.stderr
    assert f"model: {llava}" in done.stderr
    assert "Wrote 3 tokens, the first after " in done.stderr
    assert "/image PATH" in done.stderr
    assert "/save" not in done.stderr
    assert "system: be brief" in done.stderr


def test_options_of_language_models_are_refused(command, llava):
    done = command("chat", "--kv-cache", "u8", model=llava, text="")
    assert done.returncode != 0
    assert done.stderr.rstrip().endswith("[image-chat]")


def test_an_answer_that_is_left_stays_as_far_as_it_went(llava, shared):
    model = shared.load(NPUModelForImageTextToText, llava, dtype="float32")
    options = argparse.Namespace(
        model=llava, system=None, max_new_tokens=50, greedy=True, temperature=None
    )
    session = ImageSession(model, load_processor(str(llava)), options)
    stream = session.stream("what is this ?", eos_token_id=None)
    first = next(stream)
    stream.close()
    assert stream.reply.finish == "cancelled"
    assert stream.reply.text.startswith(first)
    assert 0 < stream.reply.answer_tokens < 50
    assert [one["role"] for one in session.messages] == ["user", "assistant"]
    assert session.undo() == "what is this ?"
