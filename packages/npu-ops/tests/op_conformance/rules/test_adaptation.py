import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.op_conformance import Outcome
from npu_ops.op_conformance.cases import Case
from npu_ops.op_conformance.cases import judge as judge_module
from npu_ops.op_conformance.rules import load_rules
from npu_ops.op_conformance.running.cases import case_cells

SUM = Case("interface", "sum", "int64", "contiguous", {"input": "[5,9]", "dim": [1]})
GATHER = Case(
    "interface",
    "gather",
    "float64",
    "contiguous",
    {"input": "[9]", "dim": 0, "index": "[5] int64 0..8"},
    ("forward", "backward"),
)
CONVOLUTION = Case(
    "interface",
    "conv2d",
    "float64",
    "contiguous",
    {"input": "[2,3,8,9]", "weight": "[4,3,3,3]", "bias": "[4]"},
    ("forward", "backward"),
)


@pytest.fixture
def on_the_device(monkeypatch):
    """The tensors that reach npu, as (dtype, is channels last)."""
    seen = []
    copy = judge_module.copy_to

    def note(value, device):
        if device == "npu":
            seen.extend(
                (leaf.dtype, leaf.dim() == 4 and not leaf.is_contiguous())
                for leaf in value.values()
                if isinstance(leaf, torch.Tensor)
            )
        return copy(value, device)

    monkeypatch.setattr(judge_module, "copy_to", note)
    return seen


@pytest.mark.parametrize("case", [SUM, CONVOLUTION], ids=lambda case: case.op)
def test_a_device_without_64_bits_gets_32_and_is_held_to_their_precision(case, on_the_device):
    outcomes = {cell.outcome for cell in case_cells(case, rules=load_rules("no_int64"))}
    assert outcomes == {Outcome.PASSED}
    assert {dtype for dtype, _ in on_the_device} <= {torch.int32, torch.float32}


def test_an_op_that_a_rule_excludes_keeps_its_indices(on_the_device):
    for cell in case_cells(GATHER, rules=load_rules("no_int64")):
        assert cell.outcome is Outcome.PASSED, cell
    assert {dtype for dtype, _ in on_the_device} == {torch.float32, torch.int64}


def test_a_device_that_wants_channels_last_gets_them(on_the_device):
    for cell in case_cells(CONVOLUTION, rules=load_rules("nhwc")):
        assert cell.outcome is Outcome.PASSED, cell
    assert [last for _, last in on_the_device] == [True, True, False] * 2


def test_a_wrong_result_stays_wrong_under_rules(monkeypatch):
    operator = SUM.operator
    monkeypatch.setitem(
        operator.__dict__,
        "function",
        lambda check="forward": lambda x, dim: torch.sum(x, dim) + x.is_npu,
    )
    (cell,) = case_cells(SUM, rules=load_rules("no_int64"))
    assert cell.outcome is Outcome.FAILED
    assert "not equal" in cell.detail


def test_a_file_of_ones_own_is_read(tmp_path):
    file = tmp_path / "half.toml"
    file.write_text('[[dtype]]\nfrom = "float32"\nto = "bfloat16"\nops = ["mm", "conv*"]\n')
    rules = load_rules(str(file))
    assert rules.dtype_for("conv2d", torch.float32) is torch.bfloat16
    assert rules.dtype_for("aten.mm.default", torch.float32) is torch.bfloat16
    assert rules.dtype_for("sum", torch.float32) is torch.float32


@pytest.mark.parametrize(
    "text",
    [
        None,
        "[[dtype]]\nfrom = 'float33'\nto = 'float32'",
        "[[layout]]\nto = 'sideways'",
        "[[colour]]\nto = 'red'",
        "[[dtype]]\nto = 'float32'",
    ],
)
def test_a_file_that_holds_no_rules_is_refused(tmp_path, text):
    file = tmp_path / "rules.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OperatorInputError, match=r"nhwc, no_int64, got") as error:
        load_rules(str(file))
    assert error.value.code == "conformance-rules"
