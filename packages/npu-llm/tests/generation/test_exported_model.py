import subprocess
import sys

import pytest
import torch

import npu_llm
from npu_llm import ExportedModel
from npu_llm.errors import ModelError, OptionError

PROMPT = [5, 9, 3, 7]
GREEDY = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
SAMPLED = GREEDY | {"do_sample": True, "temperature": 1.5, "seed": 7, "repetition_penalty": 1.2}

# Prints two answers of a process in which torch cannot be imported.
CODE = f"""
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "openvino")))
import npu_llm
model = npu_llm.ExportedModel(sys.argv[1])
for options in ({GREEDY}, {SAMPLED}):
    print(model.generate({PROMPT}, **options))
try:
    npu_llm.load(sys.argv[1])
except ImportError as failure:
    print(failure)
"""


@pytest.fixture(scope="module")
def folder(exported_llama):
    return exported_llama("int8", "kernels")


def test_answers_without_torch_are_those_with_it(folder):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    greedy, sampled, refusal = done.stdout.splitlines()
    with_torch = npu_llm.load(folder).generate(torch.tensor([PROMPT]), **GREEDY)
    assert greedy == str(with_torch[0, len(PROMPT) :].tolist())
    assert sampled == str(ExportedModel(folder).generate(PROMPT, **SAMPLED))
    assert "npu_llm.load: needs torch" in refusal


def test_another_pipeline_is_refused(exported_llama):
    with pytest.raises(ModelError) as caught:
        ExportedModel(exported_llama("int8", "dynamic"))
    assert caught.value.code == "exported-kernels"


def test_options_of_transformers_alone_are_refused(folder):
    model = ExportedModel(folder)
    for refused in ({"num_beams": 2}, {"stop_strings": "x"}):
        with pytest.raises(OptionError) as caught:
            model.generate(PROMPT, **refused)
        assert caught.value.code == "exported-option"
    with pytest.raises(OptionError) as caught:
        _ = model.constraints
    assert caught.value.code == "exported-option"
