"""Features of language models in each frontend, as in docs/reference/language-features.md."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import openai
import pytest

from npu_llm import ChatSession, NPUModelForCausalLM
from npu_llm.cli import main
from npu_llm.engine.engine import EngineOptions
from npu_llm.errors import ContextError
from npu_llm.serving.models.served_model import ServedModel

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "language-features.md"
FRONTENDS = ("chat", "generate", "serve", "Python")
PROMPT = "the quick brown fox jumps over"
SHOWS_TOOLS = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [7]}},
    "required": ["a"],
    "additionalProperties": False,
}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
LOOK = {"type": "function", "function": {"name": "look", "parameters": NO_ARGUMENTS}}


def cells():
    """Returns (feature, frontend) -> the page's cell."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
    found = {}
    for row in rows:
        feature, *texts = (text.strip() for text in row.strip("|").split("|"))
        found |= {(feature, name): text for name, text in zip(FRONTENDS, texts, strict=True)}
    return found


CELLS = cells()


class Asked:
    """The frontends, with one small model behind each."""

    def __init__(self, folder, cache_dir, model, client, monkeypatch, capsys):
        self.model = model
        self.client = client
        self.place = ["--model", str(folder), "--cache-dir", str(cache_dir), "--dtype", "float32"]
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def command(self, name, *words, lines=()):
        """Returns a command's output; fails if it does."""
        text = "".join(f"{line}\n" for line in lines)
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        code = main([name, *self.place, *words])
        shown = self._capsys.readouterr()
        assert code == 0, shown.err
        return shown.out

    def refuses(self, name, *words):
        """Whether a command knows no such option."""
        with pytest.raises(SystemExit):
            main([name, *words])
        return "unknown option" in self._capsys.readouterr().err

    def text(self, frontend, prompt=PROMPT, *, tokens=16, greedy=True, **options):
        """Returns a frontend's answer; options have SamplingParams' names."""
        system = options.pop("system", None)
        if frontend == "Python":
            session = ChatSession(self.model, system)
            how = {"do_sample": not greedy, "max_new_tokens": tokens, **options}
            return session.ask(prompt, **how).text
        if frontend == "serve":
            messages = [{"role": "user", "content": prompt}]
            if system:
                messages.insert(0, {"role": "system", "content": system})
            how = {"temperature": 0} if greedy else {}
            return self.complete(messages, max_tokens=tokens, **how, **options).message.content
        words = ["--max-new-tokens", str(tokens)] + (["--greedy"] if greedy else [])
        for option, value in {**options, **({"system": system} if system else {})}.items():
            words += [f"--{option.replace('_', '-')}", str(value)]
        if frontend == "generate":
            return self.command("generate", *words, prompt).removesuffix("\n")
        return self.command("chat", "--plain", *words, lines=[prompt]).removesuffix("\n")

    def ignores(self, **field):
        """Whether a server names a field of a request as one that it ignores."""
        response = self.client.chat.completions.with_raw_response.create(
            model="m", messages=[{"role": "user", "content": "x"}], max_tokens=1, extra_body=field
        )
        return response.headers["x-ignored-fields"] == next(iter(field))

    def complete(self, messages, **fields):
        """Returns the first choice of a server's answer."""
        known = ("repetition_penalty", "top_k", "min_p")
        extra = fields.pop("extra_body", {})
        extra |= {name: fields.pop(name) for name in known if name in fields}
        done = self.client.chat.completions.create(
            model="m", messages=messages, extra_body=extra, **fields
        )
        return done.choices[0]


@pytest.fixture(scope="module")
def folder(saved_speaker):
    return saved_speaker(num_key_value_heads=2, context=256, before=SHOWS_TOOLS)


@pytest.fixture(scope="module")
def model(folder, shared):
    return shared.load(NPUModelForCausalLM, folder, dtype="float32")


@pytest.fixture(scope="module")
def client(model, serve_loaders):
    with serve_loaders({"m": lambda: ServedModel("m", model, EngineOptions())}) as running:
        yield running.client()


@pytest.fixture
def asked(folder, shared, model, client, monkeypatch, capsys):
    return Asked(folder, shared.cache_dir(folder), model, client, monkeypatch, capsys)


# Each takes the frontends and the name of one.


def maximum_length(asked, frontend):
    assert asked.text("Python", tokens=8).startswith(asked.text(frontend, tokens=3))


def greedy_search(asked, frontend):
    assert asked.text(frontend) == asked.text("Python")


def sampling_with_a_seed(asked, frontend):
    first, again, other = (
        asked.text(frontend, greedy=False, temperature=2.0, seed=seed) for seed in (5, 5, 6)
    )
    assert first == again != other


def stop_strings(asked, frontend):
    whole = asked.text("Python")
    stop = whole[4:6]
    ended = whole[: whole.index(stop)]
    kept = "" if frontend == "serve" else stop
    assert asked.text(frontend, stop=stop) == ended + kept


def penalty(name, value):
    def check(asked, frontend):
        changed = asked.text("Python", **{name: value})
        assert changed != asked.text("Python")
        assert asked.text(frontend, **{name: value}) == changed

    return check


def logit_bias(asked, frontend):
    if frontend in ("chat", "generate"):
        assert asked.refuses(frontend, "--logit-bias", "5=100")
        return
    token = asked.model.tokenizer.encode("q")[-1]
    bias = {token: 100.0} if frontend == "Python" else {str(token): 100}
    assert asked.text(frontend, tokens=4, logit_bias=bias) == "qqqq"


def log_probabilities(asked, frontend):
    if frontend in ("chat", "generate"):
        assert asked.refuses(frontend, "--logprobs", "2")
        return
    reply = ChatSession(asked.model).ask(PROMPT, do_sample=False, max_new_tokens=4, logprobs=2)
    assert [len(token.top) for token in reply.logprobs] == [2] * 4
    if frontend == "serve":
        messages = [{"role": "user", "content": PROMPT}]
        fields = {"max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 2}
        told = asked.complete(messages, **fields).logprobs.content
        expected = [token.logprob for token in reply.logprobs]
        assert [one.logprob for one in told] == pytest.approx(expected, abs=1e-4)


def system_message(asked, frontend):
    spoken = asked.text("Python", system="be brief")
    assert spoken != asked.text("Python")
    assert asked.text(frontend, system="be brief") == spoken


def tool_calling(asked, frontend):
    if frontend in ("chat", "generate"):
        assert asked.refuses(frontend, "--tools", "tools.json")
    elif frontend == "serve":
        messages = [{"role": "user", "content": PROMPT}]
        choice = asked.complete(
            messages, tools=[LOOK], tool_choice="required", max_tokens=60, temperature=0
        )
        assert choice.message.tool_calls[0].function.name == "look"
    else:
        session = ChatSession(asked.model, tools=[LOOK])
        call = r'<tool_call>\{"name": "look", "arguments": \{\}\}</tool_call>'
        reply = session.ask(PROMPT, regex=call, do_sample=False, max_new_tokens=90)
        assert [one.name for one in reply.tool_calls] == ["look"]


def structured_output(asked, frontend, tmp_path):
    if frontend == "chat":
        assert asked.refuses("chat", "--json-schema", "schema.json")
        return
    if frontend == "generate":
        file = tmp_path / "schema.json"
        file.write_text(json.dumps(SCHEMA))
        text = asked.text(frontend, tokens=40, json_schema=file)
    elif frontend == "serve":
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        text = asked.text(frontend, tokens=40, response_format=form)
    else:
        text = asked.text(frontend, tokens=40, schema=SCHEMA)
    assert json.loads(text) == {"a": 7}


def streaming(asked, frontend, monkeypatch):
    whole = asked.text("Python", tokens=100)
    if frontend == "Python":
        pieces = list(ChatSession(asked.model).stream(PROMPT, do_sample=False, max_new_tokens=100))
    elif frontend == "serve":
        events = asked.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": PROMPT}], max_tokens=100,
            temperature=0, stream=True,
        )  # fmt: skip
        pieces = [event.choices[0].delta.content or "" for event in events]
    else:
        pieces, real = [], ChatSession.stream

        def noted(self, *words, **options):
            stream = real(self, *words, **options)
            taken = stream._pieces
            stream._pieces = (pieces.append(piece.text) or piece for piece in taken)
            return stream

        monkeypatch.setattr(ChatSession, "stream", noted)
        assert asked.text(frontend, tokens=100) == whole
    assert "".join(pieces) == whole
    assert sum(map(bool, pieces)) > 1  # the server sends tokens that are due together as one


def prefix_caching(asked, frontend):
    if frontend == "serve":
        messages = [{"role": "user", "content": PROMPT * 4}]
        for _ in range(2):
            done = asked.client.chat.completions.create(
                model="m", messages=messages, max_tokens=2, temperature=0
            )
        assert done.usage.prompt_tokens_details.cached_tokens >= 16
        return
    session = ChatSession(asked.model, do_sample=False, max_new_tokens=4)
    first, second = session.ask(PROMPT), session.ask("the lazy dog")
    assert second.prefilled_tokens < second.prompt_tokens
    if frontend == "chat":
        lines = asked.command(
            "chat", "--plain", "--greedy", "--max-new-tokens", "4", lines=[PROMPT, "the lazy dog"]
        )
        assert lines.removesuffix("\n") == f"{first.text}\n{second.text}"


def sessions_saved(asked, frontend, tmp_path):
    file = tmp_path / "session.npu"
    if frontend == "generate":
        assert asked.refuses("generate", "--session", str(file), "fox")
    elif frontend == "serve":
        assert asked.ignores(session="s")
    elif frontend == "chat":
        how = ("--plain", "--greedy", "--max-new-tokens", "4", "--session", str(file))
        asked.command("chat", *how, lines=[PROMPT])
        asked.command("chat", *how, lines=["the lazy dog"])
        assert len(ChatSession.restore(asked.model, file).messages) == 4
    else:
        session = ChatSession(asked.model, do_sample=False, max_new_tokens=4)
        session.ask(PROMPT)
        session.save(file)
        again = ChatSession.restore(asked.model, file, do_sample=False, max_new_tokens=4)
        assert again.ask("fox").text == session.ask("fox").text


def oldest_turns_dropped(asked, frontend):
    long = "the lazy dog and the quick brown fox " * 3
    if frontend == "generate":
        with pytest.raises(ContextError):
            ChatSession(asked.model).ask(long * 8)
        assert main(["generate", *asked.place, "--max-new-tokens", "4", long * 8]) == 2
    elif frontend == "serve":
        with pytest.raises(openai.BadRequestError) as refused:
            asked.complete([{"role": "user", "content": long * 8}], max_tokens=4)
        assert refused.value.code == "context-overflow"
    elif frontend == "chat":
        out = asked.command(
            "chat", "--plain", "--greedy", "--max-new-tokens", "4", lines=[long] * 6
        )
        assert out.count("\n") == 6
    else:
        session = ChatSession(
            asked.model, overflow="drop_oldest", do_sample=False, max_new_tokens=4
        )
        assert sum(session.ask(long).dropped_messages for _ in range(6)) > 0


def lora_adapters(asked, frontend, save_adapter, serve_loaders, folder, shared):
    if frontend == "chat":
        assert asked.refuses("chat", "--adapter", "a")
        return
    path = save_adapter("loud", "self_attn.q_proj", "mlp.down_proj")
    adapted = shared.load(NPUModelForCausalLM, folder, dtype="float32")
    adapted.set_adapter(adapted.load_adapter(path))
    spoken = ChatSession(adapted).ask(PROMPT, do_sample=False, max_new_tokens=16).text
    assert spoken != asked.text("Python")
    if frontend == "generate":
        assert asked.text("generate", adapter=path) == spoken
    elif frontend == "serve":
        served = {"loud": lambda: ServedModel("loud", adapted, EngineOptions())}
        with serve_loaders(served) as running:
            done = running.client().chat.completions.create(
                model="loud", messages=[{"role": "user", "content": PROMPT}], max_tokens=16,
                temperature=0,
            )  # fmt: skip
        assert done.choices[0].message.content == spoken


def speculative_decoding(asked, frontend):
    if frontend in ("chat", "generate"):
        assert asked.refuses(frontend, "--prompt-lookup-num-tokens", "4")
    elif frontend == "serve":
        assert asked.ignores(prompt_lookup_num_tokens=4)
    else:
        spoken = asked.text("Python", prompt_lookup_num_tokens=4)
        assert spoken.startswith(asked.text("Python")[:8])


def several_answers(asked, frontend):
    if frontend in ("chat", "generate"):
        assert asked.refuses(frontend, "--answers", "2")
    elif frontend == "serve":
        done = asked.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": PROMPT}], n=2, max_tokens=4
        )
        assert len(done.choices) == 2
    else:
        with pytest.raises(ValueError, match="session-option"):
            ChatSession(asked.model, num_return_sequences=2)


CHECKS = {
    "Maximum length": maximum_length,
    "Greedy search": greedy_search,
    "Sampling with a seed": sampling_with_a_seed,
    "Stop strings": stop_strings,
    "Repetition penalty": penalty("repetition_penalty", 5.0),
    "Frequency penalty": penalty("frequency_penalty", 2.0),
    "Presence penalty": penalty("presence_penalty", 2.0),
    "Logit bias": logit_bias,
    "Log probabilities": log_probabilities,
    "System message": system_message,
    "Tool calling": tool_calling,
    "Structured output": structured_output,
    "Streaming": streaming,
    "Prefix caching": prefix_caching,
    "Sessions saved to files": sessions_saved,
    "Oldest turns dropped at the context's end": oldest_turns_dropped,
    "LoRA adapters": lora_adapters,
    "Speculative decoding by prompt lookup": speculative_decoding,
    "Several answers to one prompt": several_answers,
}


def test_the_page_has_the_features_that_are_checked():
    assert {feature for feature, _ in CELLS} == set(CHECKS)


@pytest.mark.parametrize(
    "feature, frontend", list(CELLS), ids=lambda text: text.replace(" ", "-").lower()
)
def test_a_cell_is_as_the_page_says(feature, frontend, asked, request):
    check = CHECKS[feature]
    names = check.__code__.co_varnames[2 : check.__code__.co_argcount]
    check(asked, frontend, **{name: request.getfixturevalue(name) for name in names})
