import torch

from npu_llm.structured_output import Form, ThinkingGate

START, END = [5], [7, 8]


def gate(byte_tokenizer, **options):
    """A gate with the answer "x" or "xy"; marks are the bytes 5, and 7 and 8."""
    maker, _, size = byte_tokenizer
    form = Form.of_regex("xy?")
    made = {"direct": maker.make(form), "after": maker.make(form)}
    return ThinkingGate(start=START, end=END, ends=[size - 1], **{**made, **options})


def allowed(gate, size):
    return set((gate.mask(torch.zeros(size)) == 0).nonzero().flatten().tolist())


def test_an_answer_may_think_or_not(byte_tokenizer):
    _, decode, size = byte_tokenizer
    direct = gate(byte_tokenizer, is_open=False)
    (x,) = allowed(direct, size) - {5}
    assert decode([x]) == "x"
    direct.advance(x)
    assert 5 not in allowed(direct, size)
    thinking = gate(byte_tokenizer, is_open=False)
    thinking.advance(5)
    assert allowed(thinking, size) == set(range(size - 1))  # not the end of the answer
    for token in (1, 7, 2, 7, 8):
        thinking.advance(token)
    assert allowed(thinking, size) == {x}
    assert not thinking.is_over


def test_reasoning_that_the_prompt_has_opened_goes_on(byte_tokenizer):
    _, _, size = byte_tokenizer
    opened = gate(byte_tokenizer, is_open=True, direct=None)
    opened.advance(1)
    assert len(allowed(opened, size)) == size - 1


def test_a_spent_budget_forces_the_end(byte_tokenizer):
    _, _, size = byte_tokenizer
    for budget in (0, 3):
        opened = gate(byte_tokenizer, is_open=True, budget=budget, after=None)
        for token in range(budget):
            assert len(allowed(opened, size)) == size
            opened.advance(token)
        for token in END:
            assert allowed(opened, size) == {token}
            opened.advance(token)
        assert len(allowed(opened, size)) == size


def test_a_mark_and_an_answer_may_begin_alike(byte_tokenizer):
    _, _, size = byte_tokenizer
    x, y = (tokens[0] for tokens in (encoded("x"), encoded("y")))
    both = gate(byte_tokenizer, is_open=False)
    both._start = [x, 6]
    assert allowed(both, size) == {x}
    both.advance(x)
    assert allowed(both, size) == {6, y, size - 1}
    both.advance(6)
    assert len(allowed(both, size)) == size - 1


def encoded(text):
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [letters.index(letter) for letter in text]
