import json

import pytest

import npu_runtime
from npu_runtime import cli


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
    with pytest.raises(SystemExit) as caught:
        cli.main(["nonsense"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
