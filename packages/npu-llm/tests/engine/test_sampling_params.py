import math

import pytest

from npu_llm.engine.sampling_params import SamplingParams, to_params


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.3, "top_k": 5}, {"temperature": 0.0}),
        ({"do_sample": True}, {"top_k": 50}),
        ({"do_sample": True, "temperature": 0.3, "min_p": 0.05},
         {"temperature": 0.3, "min_p": 0.05, "top_k": 50}),
        ({"output_scores": False, "use_cache": True, "num_beams": 1, "max_length": 20},
         {"temperature": 0.0}),
        ({"use_cache": False}, {"temperature": 0.0}),  # changes the time, not the tokens
        ({"repetition_penalty": 1.1, "max_new_tokens": 3, "logprobs": 2},
         {"temperature": 0.0, "repetition_penalty": 1.1, "max_new_tokens": 3, "logprobs": 2}),
        ({"eos_token_id": [2, 7], "pad_token_id": 0},
         {"temperature": 0.0, "stop_token_ids": frozenset([2, 7])}),
        ({"eos_token_id": 2, "stop_strings": "END"},
         {"temperature": 0.0, "stop_token_ids": frozenset([2]), "stop": ("END",)}),
        ({"suppress_tokens": [3], "logit_bias": {4: 1.0}},
         {"temperature": 0.0, "logit_bias": {3: -math.inf, 4: 1.0}}),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_become_parameters(given, expected):
    assert to_params(given) == SamplingParams(**expected)


@pytest.mark.parametrize(
    "given",
    [
        {"num_beams": 4},
        {"max_length": 64},
        {"sequence_bias": [[[3], 1.0]]},
        {"logits_processor": [print]},
        {"some_new_option": "x"},
        {"do_sample": True, "top_p": 1.5},
        {"do_sample": True, "temperature": "hot"},
        {"repetition_penalty": 0},
    ],
    ids=str,
)
def test_others_are_left_to_transformers(given):
    assert to_params(given) is None
