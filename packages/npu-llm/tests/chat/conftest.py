"""A small model with words as tokens, sessions with it, and transformers' answers."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from npu_llm import ChatSession, NPUModelForCausalLM
from npu_llm.tokenizer.tokenizer import encode_chat
from npu_runtime import observe

# A thought ends at w9; of earlier answers the template shows only the text after it.
TEMPLATE = """\
{%- if messages[0].role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}
{%- if tools %}<s> system {{ tools[0].function.name }} </s> {% endif %}
{%- for m in messages %}<s> {{ m.role }} {% if forget_thoughts and m.role == 'assistant' -%}
{{ m.content.split('w9')[-1] }}{% else %}{{ m.content }}{% endif %} </s> {% endfor %}
{%- if add_generation_prompt %}<s> assistant {% endif %}"""
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system", "tool"]
WORDS += [f"w{number}" for number in range(97 - len(WORDS))]
GREEDY = {"do_sample": False, "max_new_tokens": 8, "suppress_tokens": [0, 1, 2, 3]}
SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "initializer_range": 0.3, "max_position_embeddings": 2048,
}  # fmt: skip


def save_words(folder, **changes):
    """A Llama with random weights and words as tokens."""
    words = models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(11)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="session", name="save_words")
def _save_words():
    return save_words


@pytest.fixture(scope="session")
def saved(shared):
    folder = shared.checkpoint("words", save_words)
    return folder, LlamaForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="session")
def folder(saved):
    return saved[0]


@pytest.fixture(scope="session")
def reference(saved):
    return saved[1]


@pytest.fixture(scope="session")
def cache_dir(folder, shared):
    return shared.cache_dir(folder)


@pytest.fixture(scope="session")
def model(folder, shared):
    return shared.load(NPUModelForCausalLM, folder, dtype="float32")


@pytest.fixture
def small(shared):
    """A model with a context of 64 tokens."""
    folder = shared.checkpoint(
        "words-64", lambda place: save_words(place, max_position_embeddings=64)
    )
    return shared.load(NPUModelForCausalLM, folder, dtype="float32")


@pytest.fixture
def greedy():
    """Options of an answer of eight words that are no marks."""
    return dict(GREEDY)


@pytest.fixture
def session(model, greedy):
    return ChatSession(model, "w1 w2 w3", **greedy)


@pytest.fixture
def answer_of(reference, model):
    """answer_of(messages, ...): the answer of transformers' model to the whole conversation."""

    def answer(messages, **options):
        prompt = encode_chat(model.tokenizer, messages)["input_ids"]
        mask = torch.ones_like(prompt)
        output = reference.generate(prompt, attention_mask=mask, **{**GREEDY, **options})
        return tuple(output[0, prompt.shape[1] :].tolist())

    return answer


@pytest.fixture
def steps():
    """(phase, tokens) of each step that any model runs."""
    found = []

    def note(spans):
        found.extend((s.category, s.args["tokens"]) for s in spans if "tokens" in s.args)

    observe.add_listener(note)
    yield found
    observe.remove_listener(note)


@pytest.fixture(scope="session")
def assert_code():
    """assert_code(caught, code, *quoted): that an error has a code and quotes these."""

    def check(caught, code, *quoted):
        assert caught.value.code == code
        for word in quoted:
            assert word in str(caught.value)

    return check
