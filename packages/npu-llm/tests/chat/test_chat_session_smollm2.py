"""Sessions and prompt lookup with the real SmolLM2-135M-Instruct."""

import os
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import forked_python
from npu_llm import ChatSession
from npu_llm.tokenizer.tokenizer import encode_chat

GREEDY = {"do_sample": False, "max_new_tokens": 6}
QUESTIONS = (
    "Name a river in Europe.",
    "And one in Asia?",
    "Which of them is longer?",
    "Translate 'good morning' into French.",
    "What is 12 + 30?",
    "Thank you! Tell me something about the sea 🚢.",
)


@pytest.fixture(scope="module")
def model(smollm):
    return smollm()


def fresh_answer(model, messages, **options):
    """The model's answer to the whole conversation."""
    inputs = encode_chat(model.tokenizer, messages)
    output = model.generate(**inputs, **{**GREEDY, **options})
    return tuple(output[0, inputs["input_ids"].shape[1] :].tolist())


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.long  # with a small model: test_chat_session.py
def test_forty_turns(model, weights):
    session = ChatSession(model, "You answer in few words.", **GREEDY)
    resident, answers = [], []
    for turn in range(40):
        held = session.cached_tokens
        reply = session.ask(QUESTIONS[turn % len(QUESTIONS)])
        assert reply.prefilled_tokens == reply.prompt_tokens - held
        assert session.cached_tokens == reply.prompt_tokens + len(reply.tokens) - 1
        resident.append(resident_mb())
        if turn % 8 == 7:
            answers.append((session.messages[:-1], reply.tokens))
    # Keys and values of a token take 46 kB; memory for them is taken in advance, by doubling.
    needed = session.cached_tokens * 46_080 / 1e6
    assert resident[-1] - resident[9] < 2 * needed + 50
    for messages, tokens in answers:
        assert tokens == fresh_answer(model, messages)
    reference = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    ).eval()
    assert reply.tokens == fresh_answer(reference_with(model, reference), session.messages[:-1])


def reference_with(model, reference):
    reference.tokenizer = model.tokenizer
    return reference


def test_edit_undo_and_saving(model, tmp_path):
    session = ChatSession(model, **GREEDY)
    for question in QUESTIONS[:3]:
        session.ask(question)
    session.edit(2, "And one in Africa?")
    reply = session.ask(QUESTIONS[3])
    assert reply.prefilled_tokens < reply.prompt_tokens
    assert reply.tokens == fresh_answer(model, session.messages[:-1])
    session.save(tmp_path / "talk")
    other = ChatSession.restore(model, tmp_path / "talk", **GREEDY)
    assert other.cached_tokens == session.cached_tokens
    assert other.ask(QUESTIONS[4]).tokens == session.ask(QUESTIONS[4]).tokens


def test_stop_string_ends_an_answer(model):
    session = ChatSession(model, do_sample=False, max_new_tokens=20)
    question = "What is the sea?"
    word = session.ask(question).text.split()[4]
    session.undo()
    reply = session.ask(question, stop_strings=[word])
    assert reply.finish == "stop"
    assert reply.text.endswith(word)
    assert len(reply.tokens) < 20


@pytest.mark.parametrize("pipeline", ["auto", pytest.param("static", marks=pytest.mark.long)])
def test_prompt_lookup_gives_the_same_tokens_in_fewer_steps(smollm, pipeline):
    model = smollm() if pipeline == "auto" else smollm(pipeline=pipeline)
    text = "The keeper climbed the steps, lit the lamp, and counted the ships of the night. "
    session = ChatSession(model, do_sample=False, max_new_tokens=60)
    question = f"Repeat the following text word for word:\n\n{text * 2}"
    plain = session.ask(question)
    session.undo()
    guessed = session.ask(question, prompt_lookup_num_tokens=8)
    assert guessed.tokens == plain.tokens


def test_chat_from_a_pipe(model, weights, shared, tmp_path, preload):
    line = [sys.executable, "-m", "npu_llm.cli", "chat", "--greedy", "--max-new-tokens", "10"]
    line += ["--dtype", "float32", "--cache-dir", str(shared.cache_dir(weights))]
    line += ["--session", str(tmp_path / "talk")]
    for question in QUESTIONS[:2]:
        done = forked_python.run(line, input=question, preload=preload)
        assert done.returncode == 0, done.stderr
    assert "continuing with 2 messages" in done.stderr
