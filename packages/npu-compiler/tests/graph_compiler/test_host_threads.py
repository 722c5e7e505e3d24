"""Torch's idle threads: the second team that throttles their spinning."""

from __future__ import annotations

import threading

import torch

from npu_compiler.graph_compiler.host_threads import limit_spinning


def test_one_team_is_made_if_torch_has_threads():
    for _ in range(2):
        limit_spinning()
    teams = [one for one in threading.enumerate() if one.name == "npu-openmp-team"]
    assert len(teams) == (torch.get_num_threads() > 1)
