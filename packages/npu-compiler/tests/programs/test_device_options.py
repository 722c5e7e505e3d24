"""Compiling again without the CPU plugin's generator of kernels, where that failed."""

from __future__ import annotations

import pytest

from npu_compiler.programs.device_options import compile_tolerant


@pytest.mark.parametrize("device", ["CPU", "CPU.0", "SIM", "SIM2"])
def test_failing_snippets_are_turned_off_for_the_cpu_plugin(device):
    seen = []

    def compile_model(options):
        seen.append(options)
        if "SNIPPETS_MODE" not in options:
            raise RuntimeError("snippets/src/x.cpp: no")
        return "compiled"

    made = compile_tolerant(compile_model, {"NUM_STREAMS": "1"}, name="test", device=device)
    assert made == ("compiled", {"SNIPPETS_MODE": "DISABLE"})
    assert seen == [{"NUM_STREAMS": "1"}, {"NUM_STREAMS": "1", "SNIPPETS_MODE": "DISABLE"}]


@pytest.mark.parametrize("device", ["NPU", "NPU.4000", "GPU"])
def test_another_plugin_is_not_asked_for_an_option_that_it_refuses(device):
    seen = []

    def compile_model(options):
        seen.append(options)
        raise RuntimeError("snippets/src/x.cpp: no")

    with pytest.raises(RuntimeError, match=r"x\.cpp: no"):
        compile_tolerant(compile_model, {}, name="test", device=device)
    assert seen == [{}]
