from pathlib import Path
from types import SimpleNamespace

import pytest

from npu_llm.capture.compression import Compression, compress_by_text
from npu_llm.errors import OptionError


def test_a_text_rounds_no_weights_of_a_model_with_states():
    step = SimpleNamespace(states=("a state",))
    with pytest.raises(OptionError, match="has recurrent states") as caught:
        compress_by_text(None, step, Compression(text=Path("pages.txt")), None)
    assert caught.value.code == "quantize-text"
