"""A model of bytes that can be held to a form."""

from __future__ import annotations

import pytest

from npu_llm import NPUModelForCausalLM


@pytest.fixture(scope="session")
def speaker(saved_speaker, shared):
    # More logits than tokens, as real models have.
    folder = saved_speaker(context=512, logits=7)
    return shared.load(NPUModelForCausalLM, folder, dtype="float32")
