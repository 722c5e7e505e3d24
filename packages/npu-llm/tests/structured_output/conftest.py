"""A tokenizer with one token per byte."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from npu_llm.structured_output import ConstraintMaker


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A maker of constraints, a function that decodes, and the size of the vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(["<end>"])

    class Wrapped:
        backend_tokenizer = tokens

    size = tokens.get_vocab_size()
    return ConstraintMaker(Wrapped, vocabulary=size, ends=[size - 1]), tokens.decode, size
