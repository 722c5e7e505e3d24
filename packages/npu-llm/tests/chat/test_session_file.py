"""Saving and restoring sessions."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import forked_python
from npu_llm import ChatSession, NPUModelForCausalLM, SessionError
from npu_llm.kv_cache import blocks


def test_restored_session_goes_on_where_it_was(
    folder, cache_dir, tmp_path, steps, greedy, each_openvino_pipeline
):
    model = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline=each_openvino_pipeline, cache_dir=cache_dir
    )
    session = ChatSession(model, "w1 w2 w3", **greedy)
    session.ask("w4")
    session.ask("w5")
    session.save(tmp_path / "talk")
    steps.clear()
    other = ChatSession.restore(model, tmp_path / "talk", **greedy)
    # In the dynamic pipeline at once, and in one go; in the static one the file has the cache.
    is_read = each_openvino_pipeline == "dynamic"
    assert steps == [("prefill", session.cached_tokens)] * is_read
    assert other.messages == session.messages
    mine, theirs = session.ask("w6"), other.ask("w6")
    assert theirs.tokens == mine.tokens
    assert theirs.prefilled_tokens == mine.prefilled_tokens
    assert list(tmp_path.iterdir()) == [tmp_path / "talk"]


def test_session_without_messages_can_be_saved(model, tmp_path):
    ChatSession(model).save(tmp_path / "talk")
    assert ChatSession.restore(model, tmp_path / "talk").messages == []


@pytest.mark.parametrize("pipeline", ["static", "kernels"])
def test_cache_that_can_be_copied_is_saved_and_not_read_again(
    folder, cache_dir, tmp_path, monkeypatch, steps, greedy, pipeline
):
    other_pipeline = {"kernels": "static", "static": "kernels"}[pipeline]
    static = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline=pipeline, cache_dir=cache_dir
    )
    session = ChatSession(static, "w1 w2 w3", **greedy)
    session.ask("w4")
    session.save(tmp_path / "talk")
    steps.clear()
    other = ChatSession.restore(static, tmp_path / "talk", **greedy)
    assert steps == []
    assert other.cached_tokens == session.cached_tokens > 0
    mine, theirs = session.ask("w6"), other.ask("w6")
    assert theirs.tokens == mine.tokens
    assert theirs.prefilled_tokens == mine.prefilled_tokens
    # In another build or pipeline the cache is another, but not the tokens.
    steps.clear()
    another = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline=other_pipeline, cache_dir=cache_dir
    )
    ChatSession.restore(another, tmp_path / "talk", **greedy)
    monkeypatch.setattr(NPUModelForCausalLM, "cache_kind", "another")
    ChatSession.restore(static, tmp_path / "talk", **greedy)
    assert [phase for phase, _ in steps] == ["prefill", "prefill"]


def test_keys_and_values_of_another_layout_are_read_again(
    folder, cache_dir, tmp_path, monkeypatch, steps, greedy
):
    model = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline="kernels", cache_dir=cache_dir
    )
    session = ChatSession(model, "w1 w2 w3", **greedy)
    session.ask("w4")
    monkeypatch.setattr(blocks, "block_layout", lambda *of: f"another of {of}")
    session.save(tmp_path / "talk")
    monkeypatch.undo()
    steps.clear()
    other = ChatSession.restore(model, tmp_path / "talk", **greedy)
    assert [phase for phase, _ in steps] == ["prefill"]
    assert other.ask("w6").tokens == session.ask("w6").tokens


def test_other_models_and_precisions_are_refused(
    save_words, session, model, folder, tmp_path, cache_dir, assert_code
):
    session.ask("w4")
    session.save(tmp_path / "talk")
    save_words(tmp_path / "words", max_position_embeddings=1024)
    save_words(tmp_path / "other")
    for place, dtype, what in (
        (folder, "int8", "precision"),
        (tmp_path / "words", "float32", "config"),
        (tmp_path / "other", "float32", "name"),
    ):
        stranger = NPUModelForCausalLM.from_pretrained(place, dtype=dtype, cache_dir=cache_dir)
        with pytest.raises(SessionError) as caught:
            ChatSession.restore(stranger, tmp_path / "talk")
        assert_code(caught, "session-model", "words in float32", f"by its {what}")


def changed(path, **metadata):
    """Writes a session's file anew with other metadata."""
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {**old, **metadata})


@pytest.mark.parametrize(
    "damage, quoted",
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b"\x80\x04."), "SafetensorError"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "SafetensorError"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\1" * 9), "digest"),
        (lambda path: changed(path, about=json.dumps({"messages": []})), "digest"),
        (lambda path: changed(path, version="2"), "format 2 instead of 1"),
        (lambda path: save_file({"a": torch.ones(1)}, path), "another kind"),
    ],
    ids=["absent", "foreign", "cut", "flipped", "messages", "version", "weights"],
)
def test_file_that_is_no_session(session, model, tmp_path, damage, quoted, assert_code):
    session.ask("w4")
    session.save(tmp_path / "talk")
    damage(tmp_path / "talk")
    with pytest.raises(SessionError) as caught:
        ChatSession.restore(model, tmp_path / "talk")
    assert_code(caught, "session-unreadable", "talk", quoted)


def test_place_that_cannot_be_written(session, tmp_path, assert_code):
    with pytest.raises(SessionError) as caught:
        session.save(tmp_path / "nowhere" / "talk")
    assert_code(caught, "session-unwritable", "nowhere")
    session.append({"role": "tool", "content": object()})
    with pytest.raises(SessionError) as caught:
        session.save(tmp_path / "talk")
    assert_code(caught, "session-unwritable", "JSON")
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys
from npu_llm import ChatSession, NPUModelForCausalLM
model = NPUModelForCausalLM.from_pretrained(sys.argv[1], dtype="float32", cache_dir=sys.argv[2])
session = ChatSession(model, do_sample=False, max_new_tokens=8, suppress_tokens=[0, 1, 2, 3])
for number in range(3):
    session.ask(f"w{number}")
    session.save(sys.argv[3])
for piece in session.stream("w60", max_new_tokens=1500):
    print(piece, flush=True)
"""


def test_killed_process_is_taken_up_from_its_last_save(
    model, answer_of, folder, cache_dir, tmp_path, greedy, preload
):
    line = [sys.executable, "-c", CHILD, str(folder), str(cache_dir), str(tmp_path / "talk")]
    with forked_python.start(line, stdout=subprocess.PIPE, preload=preload) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    session = ChatSession.restore(model, tmp_path / "talk", **greedy)
    questions = [m["content"] for m in session.messages if m["role"] == "user"]
    assert questions == ["w0", "w1", "w2"]
    reply = session.ask("w60")
    assert reply.prefilled_tokens == 1 + 1 + 4 + 2
    assert reply.tokens == answer_of(session.messages[:-1])
