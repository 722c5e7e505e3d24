"""Policy of host ops: strict mode, forced ops, and the log at first use."""

import logging
import os
import sys
from collections.abc import Iterator

import pytest
import torch

import forked_python
import npu_ops


@pytest.fixture
def changed_policy() -> Iterator[None]:
    """Puts the rules back that hold without settings."""
    yield
    npu_ops.set_fallback_policy(strict=False, host_ops=())


def test_strict_names_the_op_the_line_and_the_way_out(changed_policy: None) -> None:
    x = torch.rand(4, device="npu")
    npu_ops.set_fallback_policy(strict=True)
    with pytest.raises(NotImplementedError) as caught:
        torch.cumsum(x, 0)
    text = str(caught.value)
    assert "aten.cumsum: NPU_STRICT forbids host kernels" in text
    assert f"{__file__}:" in text
    assert "NPU_FALLBACK_OPS=aten.cumsum" in text
    assert "[fallback-forbidden]" in text


def test_strict_lets_own_kernels_and_views_pass(changed_policy: None) -> None:
    npu_ops.set_fallback_policy(strict=True)
    x = torch.empty(4, 4, device="npu")
    assert x.t()[1:].shape == (3, 4)
    x.copy_(torch.ones(4, 4))
    assert x[0, 0].item() == 1.0


def test_strict_lets_tensors_be_printed(changed_policy: None) -> None:
    x = torch.arange(3.0).to("npu")
    npu_ops.set_fallback_policy(strict=True)
    assert repr(x) == "tensor([0., 1., 2.], device='npu:0')"
    with pytest.raises(NotImplementedError, match=r"aten\.cumsum"):
        torch.cumsum(x, 0)


def test_a_forced_op_may_run_on_the_host_under_strict(changed_policy: None) -> None:
    x = torch.ones(4, device="npu")
    npu_ops.set_fallback_policy(strict=True, host_ops=["aten.cums*"])
    assert torch.cumsum(x, 0).numpy(force=True).tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(NotImplementedError, match=r"aten\.cumprod"):
        torch.cumprod(x, 0)


def test_strict_can_be_taken_back(changed_policy: None) -> None:
    x = torch.ones(4, device="npu")
    npu_ops.set_fallback_policy(strict=True)
    with pytest.raises(NotImplementedError, match="fallback-forbidden"):
        torch.cumprod(x, 0)
    npu_ops.set_fallback_policy(strict=False)
    assert torch.cumprod(x, 0).sum().item() == 4.0


def test_strict_in_a_backward_pass_says_so(changed_policy: None) -> None:
    x = torch.rand(4, 4, device="npu", requires_grad=True)
    y = torch.linalg.det(x)
    npu_ops.set_fallback_policy(strict=True)
    with pytest.raises(NotImplementedError, match="fallback-forbidden"):
        y.backward()


def test_the_first_use_of_a_host_kernel_is_logged_once(
    caplog: pytest.LogCaptureFixture, changed_policy: None
) -> None:
    x = torch.ones(4, device="npu")
    npu_ops.set_fallback_policy()  # every op is unseen again
    with caplog.at_level(logging.INFO, logger="npu_ops.fallback"):
        torch.cumsum(x, 0)
        torch.cumsum(x, 0)
    lines = [record.message for record in caplog.records if "aten.cumsum" in record.message]
    assert len(lines) == 1
    assert f"aten.cumsum runs on the host; first called at {__file__}:" in lines[0]


def test_the_environment_sets_the_rules() -> None:
    script = (
        "import torch\n"
        "x = torch.ones(3).to('npu')\n"
        "print(torch.cumsum(x, 0).cpu().tolist())\n"
        "try: torch.cumprod(x, 0)\n"
        "except NotImplementedError as error: print(error)\n"
    )
    done = forked_python.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "NPU_STRICT": "1",
            "NPU_FALLBACK_OPS": "aten.cumsum",
        },
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("[1.0, 2.0, 3.0]\naten.cumprod: NPU_STRICT forbids")
    assert "called at <string>:4." in done.stdout


def test_torch_npu_offers_the_report_and_the_rules(changed_policy: None) -> None:
    torch.npu.reset_fallback_report()
    torch.cumsum(torch.ones(4, device="npu"), 0)
    assert torch.npu.fallback_report()["aten::cumsum"] == 1
    torch.npu.set_fallback_policy(strict=True)
    with pytest.raises(NotImplementedError, match="fallback-forbidden"):
        torch.cumsum(torch.empty(4, device="npu"), 0)


def test_a_forced_op_leaves_its_unboxed_kernel(changed_policy: None) -> None:
    x = torch.ones(4, device="npu")
    torch.npu.reset_fallback_report()
    x + x
    assert torch.npu.fallback_report() == {}
    torch.npu.set_fallback_policy(host_ops=["aten.add.*"])
    assert (x + x).sum().item() == 8.0
    assert torch.npu.fallback_report()["aten::add.Tensor"] == 1
    torch.npu.set_fallback_policy(host_ops=[])
    torch.npu.reset_fallback_report()
    x + x
    assert "aten::add.Tensor" not in torch.npu.fallback_report()


def test_the_environment_forces_ops_from_the_start() -> None:
    script = (
        "import torch\n"
        "x = torch.ones(3).to('npu')\n"
        "x + x, x * x\n"
        "print(torch.npu.fallback_report())\n"
    )
    done = forked_python.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NPU_FALLBACK_OPS": "add,added"},
        timeout=120,
        check=True,
    )
    assert done.stdout == "{'aten::add.Tensor': 1}\n"
    # A module that is imported later may define it.
    assert "RuntimeWarning: `NPU_FALLBACK_OPS` must name operators, got 'added'" in done.stderr


def test_patterns_that_are_no_texts_are_refused():
    with pytest.raises(TypeError, match=r"patterns of names, got \(1, 2\)") as caught:
        npu_ops.set_fallback_policy(host_ops=iter([1, 2]))
    assert caught.value.code == "argument-kind"
