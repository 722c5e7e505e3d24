"""Detokenizer: its pieces join to the text of all tokens, for any decoder."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models

from npu_llm.tokenizer.detokenizer import Detokenizer, StopStrings

_WORDS = ["▁a", "▁river", "s", "▁", "ing", "\n", "▁é", "##ly", "##s", "word", "."]
_BYTES = [f"<0x{value:02X}>" for value in range(256)]


class Decoding:
    """A tokenizer of tokenizers, as Detokenizer calls it; counts decoded tokens."""

    def __init__(self, decoder):
        vocabulary = {text: index for index, text in enumerate([*_WORDS, *_BYTES])}
        self.inner = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
        self.inner.decoder = decoder
        self.decoded = 0

    def decode(self, tokens, **_):
        self.decoded += len(tokens)
        return self.inner.decode(list(tokens), skip_special_tokens=True)


def pieces_of(tokenizer, tokens):
    text = Detokenizer(tokenizer)
    return [*(text.put([token]) for token in tokens), text.end()]


# As Llama's: marks of spaces, bytes of characters, and no space at the start.
SENTENCES = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(content=" ", left=1),
    ]
)


@pytest.mark.parametrize("decoder", [SENTENCES, decoders.WordPiece(cleanup=False)])
@pytest.mark.parametrize("seed", range(20))
def test_pieces_together_are_the_text_of_all(decoder, seed):
    numbers = random.Random(seed)
    tokenizer = Decoding(decoder)
    tokens = []
    for _ in range(150):
        if numbers.random() < 0.2:
            character = numbers.choice("é日🚂\u00a0")
            tokens += [len(_WORDS) + byte for byte in character.encode()]
        else:
            tokens.append(numbers.randrange(len(_WORDS)))
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_a_long_line_is_not_decoded_again_with_each_token():
    tokenizer = Decoding(SENTENCES)
    pieces_of(tokenizer, [1] * 2000)
    assert tokenizer.decoded < 2000 * 32


def taken(stops, pieces):
    one = StopStrings(stops)
    passed = "".join(one.take(piece) for piece in pieces)
    return passed + one.rest(), one.has_stopped


def test_a_stop_string_may_come_in_pieces():
    assert taken(["END"], ["a E", "N", "D b"]) == ("a ", True)
    assert taken(["END"], ["a E", "N", "d b"]) == ("a ENd b", False)
    assert taken(["END"], ["a EN"]) == ("a EN", False)


def test_the_first_of_several_counts():
    assert taken(["xx", "ab"], ["1ab2xx"]) == ("1", True)
    assert taken([], ["abc", ""]) == ("abc", False)


def test_any_cut_into_pieces_gives_the_same_text():
    numbers = random.Random(4)
    for _ in range(300):
        text = "".join(numbers.choice("ab") for _ in range(30))
        stops = ["".join(numbers.choice("ab") for _ in range(numbers.randint(1, 6)))]
        cuts = sorted(numbers.sample(range(31), 5))
        pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, 30], strict=True)]
        place = text.find(stops[0])
        assert taken(stops, pieces) == (text if place < 0 else text[:place], place >= 0)
