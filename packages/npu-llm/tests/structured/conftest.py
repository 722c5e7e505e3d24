"""A model of bytes that can be held to a form."""

from __future__ import annotations

import pytest

from npu_llm import NPUModelForCausalLM


@pytest.fixture(scope="session")
def speaker(save_speaker, tmp_path_factory):
    # More logits than tokens, as real models have.
    folder = save_speaker(tmp_path_factory.mktemp("speaker"), context=512, logits=7)
    return NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", cache_dir=tmp_path_factory.mktemp("speaker-cache")
    )
