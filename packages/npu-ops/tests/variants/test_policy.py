from npu_ops.variants.policy import Decision, Facts, decide
from npu_ops.variants.records import Measurement

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
    assert own == Decision("host", "no record, and the device is the host's own processor")


def test_settings_come_before_records() -> None:
    assert decide(facts(mode="host")).variant == "host"
    assert decide(facts(mode="program", measurement=None)).variant == "program"


def test_a_forced_op_runs_on_the_host_whatever_else_is_set() -> None:
    decision = decide(facts(mode="program", host_pattern="aten.m*"))
    assert decision == Decision("host", "NPU_FALLBACK_OPS has 'aten.m*'")
