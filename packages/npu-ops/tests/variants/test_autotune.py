from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import npu_ops
from npu_ops import _C
from npu_ops.config import read_settings
from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.variants import OpCall, OpProgram, TensorSpec, autotune
from npu_ops.variants.autotune import Decision, Facts, decide
from npu_ops.variants.measurements import Measurement

FASTER = Measurement(program_us=10, host_us=20, is_equal=True, largest_error=1e-7)


def facts(**changes: object) -> Facts:
    given = {
        "mode": "measured",
        "host_pattern": None,
        "is_host_device": False,
        "measurement": FASTER,
    }
    return Facts(**{**given, **changes})  # type: ignore[arg-type]


def test_the_faster_body_serves() -> None:
    assert decide(facts()) == Decision("program", "measured: program 10.0 us, host kernel 20.0 us")
    slower = Measurement(program_us=20, host_us=10, is_equal=True, largest_error=0)
    assert decide(facts(measurement=slower)).variant == "host"


def test_a_gain_within_the_noise_does_not_count() -> None:
    close = Measurement(program_us=10, host_us=10.4, is_equal=True, largest_error=0)
    assert decide(facts(measurement=close)).variant == "host"


def test_a_wrong_result_is_never_chosen_for_speed() -> None:
    wrong = Measurement(program_us=1, host_us=1000, is_equal=False, largest_error=0.5)
    decision = decide(facts(measurement=wrong))
    assert decision.variant == "host"
    assert "differs" in decision.reason


def test_without_a_record_the_host_serves_and_says_so() -> None:
    assert "no record" in decide(facts(measurement=None)).reason
    own = decide(facts(measurement=None, is_host_device=True))
    assert own == Decision("host", "no record, and the device is the host processor")


def test_settings_come_before_records() -> None:
    assert decide(facts(mode="host")).variant == "host"
    assert decide(facts(mode="program", measurement=None)).variant == "program"


def test_a_forced_op_runs_on_the_host_whatever_else_is_set() -> None:
    decision = decide(facts(mode="program", host_pattern="aten.m*"))
    assert decision == Decision("host", "NPU_FALLBACK_OPS has 'aten.m*'")


MM = OpCall("aten::mm", (TensorSpec(torch.float32, (2, 3)), TensorSpec(torch.float32, (3, 4))))
KEY = str(MM)


@pytest.fixture
def autotuner(tmp_path: Path) -> Iterator[autotune.Autotuner]:
    """A autotuner with an empty record file, which the process uses meanwhile."""
    settings = read_settings({"NPU_OPS_RECORDS": str(tmp_path / "records.json")})
    with autotune.temporary_autotuner(settings) as made:
        yield made


def refuse(call: OpCall, *, device_index: int) -> OpProgram:
    raise OpsError("no such program", "no-program")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls for which a program was requested, and refused."""
    calls: list[str] = []

    def builder(call: OpCall, *, device_index: int) -> OpProgram:
        calls.append(str(call))
        return refuse(call, device_index=device_index)

    monkeypatch.setattr(autotune, "_builder", lambda: builder)
    return calls


def product() -> torch.Tensor:
    return torch.ones(2, 3, device="npu") @ torch.ones(3, 4, device="npu")


def test_without_records_nothing_is_asked(autotuner: autotune.Autotuner) -> None:
    product()
    assert npu_ops.variants.choices() == ()


def test_a_program_that_cannot_be_built_leaves_the_host_kernel(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "_builder", lambda: refuse)
    npu_ops.variants.set_variant_policy(mode="program")
    assert product().sum().item() == 24.0
    (made,) = (made for made in npu_ops.variants.choices() if made.call.startswith("aten.mm"))
    assert made == autotune.Choice(KEY, "host", "no such program [no-program]")


def test_a_signature_is_asked_about_once(autotuner: autotune.Autotuner, asked: list[str]) -> None:
    npu_ops.variants.set_variant_policy(mode="program")
    for _ in range(3):
        product()
    torch.ones(2, 3, device="npu") @ torch.ones(4, 3, device="npu").t()
    assert asked == [KEY, "aten.mm 2x3xf32 3x4xf32@1.0"]


def test_nothing_is_measured_while_waits_are_reported(
    autotuner: autotune.Autotuner, asked: list[str]
) -> None:
    npu_ops.variants.set_variant_policy(tune=True)
    torch.npu.set_sync_debug_mode("error")
    try:
        product()
    finally:
        torch.npu.set_sync_debug_mode("default")
    assert asked == []


def test_without_a_builder_the_reason_says_what_to_install(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune.importlib.metadata, "entry_points", lambda **_: ())
    npu_ops.variants.set_variant_policy(mode="program")
    product()
    reasons = {made.reason for made in npu_ops.variants.choices()}
    assert any("pip install dist/npu_compiler-" in reason for reason in reasons)


def test_a_record_makes_its_op_ask(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Measurement(program_us=9, host_us=1, is_equal=True, largest_error=0)
    autotuner.records.add(autotune.device_key(0), KEY, slow)
    _C.reset_choices()
    product()
    torch.relu(torch.ones(2, device="npu"))
    assert [made.call for made in npu_ops.variants.choices()] == [KEY]
    assert "host kernel 1.0 us" in npu_ops.variants.choices()[0].reason


def test_forced_ops_are_never_asked_about(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "_builder", lambda: refuse)
    npu_ops.set_fallback_policy(host_ops=["aten.mm"])
    try:
        npu_ops.variants.set_variant_policy(mode="program")
        product()
        assert not [m for m in npu_ops.variants.choices() if m.call.startswith("aten.mm")]
    finally:
        npu_ops.set_fallback_policy(host_ops=())


def test_choices_are_bounded(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "_builder", lambda: refuse)
    npu_ops.variants.set_variant_policy(mode="program")
    product()
    _C.set_program_capacity(3)
    for size in range(1, 9):
        torch.ones(size, 2, device="npu") @ torch.ones(2, 2, device="npu")
    assert _C.remembered_choices() == 3
    _C.set_program_capacity(autotuner.settings.programs)


def test_an_unexpected_failure_of_a_builder_is_an_exception_of_the_call(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(call: OpCall, *, device_index: int) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(autotune, "_builder", lambda: broken)
    npu_ops.variants.set_variant_policy(mode="program")
    with pytest.raises(RuntimeError, match="choosing a kernel failed: ZeroDivisionError: a defect"):
        product()


def test_programs_want_the_package_that_builds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.importlib.metadata, "entry_points", lambda **_: ())
    with pytest.raises(OpsError, match="npu-compiler must be installed") as caught:
        autotune._builder()
    assert caught.value.code == "no-builder"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(0, 3, device="npu") @ torch.ones(3, 4, device="npu"),
        lambda: (
            torch.ones(2, 3, device="npu", dtype=torch.complex64).conj()
            @ torch.ones(3, 4, device="npu", dtype=torch.complex64)
        ),
    ],
    ids=["empty", "complex"],
)
def test_calls_that_no_program_serves_go_to_the_host(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    monkeypatch.setattr(autotune, "_builder", lambda: refuse)
    npu_ops.variants.set_variant_policy(mode="program")
    assert make().shape[1] == 4


def test_an_unknown_mode_is_an_error(autotuner: autotune.Autotuner) -> None:
    with pytest.raises(OperatorInputError, match="got 'fast'"):
        npu_ops.variants.set_variant_policy(mode="fast")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Measurement:
    """On a separate device every program measures like this."""
    found = Measurement(program_us=1, host_us=9, is_equal=True, largest_error=0)
    monkeypatch.setattr(autotune, "is_host_device", lambda _: False)
    monkeypatch.setattr("npu_ops.variants.measurements.measure", lambda *_, **__: found)
    return found


def stand_in(call: OpCall) -> Any:
    return OpProgram(program=None, inputs=(0, 1), results=(0,), output_orders=((),))


def test_what_is_measured_at_first_sight_is_built_once(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch, fast: Measurement
) -> None:
    built: list[OpProgram] = []

    def builder(call: OpCall, *, device_index: int) -> OpProgram:
        built.append(stand_in(call))
        return built[-1]

    monkeypatch.setattr(autotune, "_builder", lambda: builder)
    assert autotuner.choose(MM.op, MM.arguments, 0, needs_grad=False) is built[0]
    assert len(built) == 1
    assert autotuner.records.find(autotune.device_key(0), KEY) == fast


def test_a_program_that_measures_slower_is_not_returned(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch, fast: Measurement
) -> None:
    slow = Measurement(program_us=9, host_us=1, is_equal=True, largest_error=0)
    monkeypatch.setattr("npu_ops.variants.measurements.measure", lambda *_, **__: slow)
    monkeypatch.setattr(autotune, "_builder", lambda: lambda call, **_: stand_in(call))
    assert autotuner.choose(MM.op, MM.arguments, 0, needs_grad=False) is None


def test_a_device_of_its_own_measures_what_it_sees_first(
    autotuner: autotune.Autotuner, monkeypatch: pytest.MonkeyPatch, fast: Measurement
) -> None:
    monkeypatch.setattr(autotune, "_builder", lambda: refuse)
    tuned: list[str] = []

    def tune(call: OpCall, *, device_index: int) -> None:
        tuned.append(str(call))
        raise OpsError("no such program", "no-program")

    monkeypatch.setattr(autotuner, "tune", tune)
    _C.reset_choices()
    product()
    product()
    assert tuned == [KEY]
