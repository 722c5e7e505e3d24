import json
from dataclasses import replace

from npu_runtime.doctor import as_json, as_table, exit_code, run_checks, verdict
from npu_runtime.doctor.machine import Serving


def test_the_exit_code_tells_whether_something_is_to_be_mended(healthy, without_npu):
    def code(machine, **how):
        return exit_code(machine, run_checks(machine), **how)

    assert code(healthy) == code(healthy, require_npu=True) == 0
    assert (code(without_npu), code(without_npu, require_npu=True)) == (0, 1)
    assert code(replace(healthy, has_module=False)) == 1
    assert code(replace(without_npu, is_wsl=True)) == 1
    nothing = replace(without_npu, requested_device="NPU", serving=Serving("", "", "no device"))
    assert code(nothing) == 1


def test_a_note_alone_is_no_failure(healthy):
    machine = replace(healthy, packages={"intel-fw-npu": "1", "intel-level-zero-npu": "2"})
    assert exit_code(machine, run_checks(machine)) == 0


def test_the_verdict_names_the_first_problem_and_what_serves_instead(healthy):
    broken = replace(healthy, has_module=False, serving=Serving("CPU", "x", "no NPU"))
    said = verdict(broken, run_checks(broken))
    assert 'see first "kernel module"' in said
    assert "OpenVINO's CPU plugin serves as npu (the embedded default)" in said


def test_the_verdict_without_an_npu_says_what_works(without_npu):
    said = verdict(without_npu, run_checks(without_npu))
    assert said.startswith("This machine has no NPU, and needs none: OpenVINO's CPU plugin serves")


def test_the_verdict_of_a_machine_whose_npu_serves(healthy):
    assert verdict(healthy, run_checks(healthy)) == "The NPU serves as npu."
    old_kernel = replace(healthy, kernel="5.1")
    assert "1 problem may still matter" in verdict(old_kernel, run_checks(old_kernel))


def test_the_verdict_says_when_another_device_was_asked_for(healthy):
    machine = replace(healthy, requested_device="CPU", serving=Serving("CPU", "x", "asked for"))
    said = verdict(machine, run_checks(machine))
    assert said.startswith("Nothing keeps the NPU from serving. OpenVINO's CPU plugin serves")
    assert "as NPU_DEVICE asks" in said


def test_the_verdict_when_nothing_serves(healthy):
    machine = replace(healthy, requested_device="NPU", serving=Serving("", "", "no device"))
    assert verdict(machine, run_checks(machine)) == (
        "Nothing can serve as npu while NPU_DEVICE=NPU is set."
    )


def test_the_table_has_a_line_for_each_check_and_keeps_commands_whole(healthy):
    machine = replace(healthy, has_module=False)
    checks = run_checks(machine)
    table = as_table(machine, checks, width=60)
    for check in checks:
        assert check.name in table
    assert "→ Run: sudo modprobe intel_vpu." in table
    assert "--subsystem-match" not in table
    assert table.endswith("The NPU serves as npu, and 1 problem may still matter.")


def test_json_holds_every_check_and_the_outcome(without_npu):
    checks = run_checks(without_npu)
    values = json.loads(json.dumps(as_json(without_npu, checks)))
    assert values["serving"]["device"] == "CPU"
    assert [check["name"] for check in values["checks"]] == [check.name for check in checks]
    assert {"status": "problem"}.items() <= values["checks"][1].items()
