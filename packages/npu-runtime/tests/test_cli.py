import json

import npu_runtime
from npu_runtime import cli, doctor


def test_info_shows_the_device_and_the_reason(capsys):
    assert cli.main(["info"]) == 0
    shown = capsys.readouterr().out
    assert npu_runtime.device_info().reason in shown
    assert npu_runtime.device_info().full_name in shown


def test_info_as_json_has_the_same_facts(capsys):
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["devices"][0]["reason"] == npu_runtime.device_info().reason
    assert report["memory"]["total_bytes"] > 0
    assert report["npu-runtime"] == "0.1.0"


def test_an_absent_device_ends_with_2_and_one_line(run_python):
    done = run_python(
        "import sys; from npu_runtime import cli; sys.exit(cli.main(['info']))", NPU_DEVICE="NPU"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "[device-absent]" in done.stderr


def test_an_unknown_command_ends_with_2(capsys):
    assert cli.main(["nonsense"]) == 2
    assert "no command 'nonsense'" in capsys.readouterr().err


def test_doctor_shows_every_check_and_ends_with_its_verdict(capsys):
    code = cli.main(["doctor"])
    shown = capsys.readouterr().out
    machine = doctor.read_machine()
    checks = doctor.run_checks(machine)
    assert code == doctor.exit_code(machine, checks)
    assert all(check.name in shown for check in checks)
    assert shown.strip().splitlines()[-1] in doctor.as_table(machine, checks)


def test_doctor_as_json_has_the_same_results(capsys):
    cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["serving"]["device"] == npu_runtime.device_info().device
    assert len(report["checks"]) == len(doctor.CHECKS)


def test_doctor_works_where_no_device_can_serve(run_python):
    done = run_python(
        "import sys; from npu_runtime import cli; sys.exit(cli.main(['doctor']))", NPU_DEVICE="NPU"
    )
    assert done.returncode == 1, done.stderr
    assert "Nothing can serve as npu while NPU_DEVICE=NPU is set." in done.stdout
