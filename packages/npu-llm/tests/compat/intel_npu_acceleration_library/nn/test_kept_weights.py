"""Names of weights that the backend keeps."""

import copy

import torch

from npu_llm.compat.intel_npu_acceleration_library.nn.kept_weights import KeptWeights


def test_a_name_stays_until_the_weights_change():
    kept, weight, scale = KeptWeights(), torch.zeros(4), torch.ones(4)
    first = kept.name(weight, scale)
    assert kept.name(weight, scale) == first
    scale.mul_(2)
    second = kept.name(weight, scale)
    assert second not in ("", first)
    assert kept.name(torch.zeros(4), scale) not in (first, second)


def test_a_copy_has_a_name_of_its_own():
    kept, weight = KeptWeights(), torch.zeros(4)
    assert kept.name(weight) != copy.deepcopy(kept).name(weight)
