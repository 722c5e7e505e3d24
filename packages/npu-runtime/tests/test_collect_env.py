import json

import npu_runtime
from npu_runtime import collect_env
from npu_runtime.commands.collect_env import main as command


def test_ours_as_json_holds_devices_versions_and_the_doctors_verdict(capsys, monkeypatch):
    monkeypatch.setenv("NPU_STRANGE", "1")
    assert command(["--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["devices"][0]["reason"] == npu_runtime.device_info().reason
    assert values["driver_error"] == ""
    assert values["packages"]["npu-runtime"] == "0.1.0"
    assert values["environment"]["NPU_STRANGE"] == "1"
    assert values["doctor"]["verdict"]


def test_the_text_holds_torchs_own_collection_and_ours(capsys, monkeypatch):
    monkeypatch.setattr(collect_env.torchs_own, "get_pretty_env_info", lambda: "PyTorch version: x")
    assert command([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("PyTorch version: x")
    assert npu_runtime.device_info().full_name in shown
    assert "npu-runtime doctor: " in shown


def test_a_machine_without_a_device_is_still_described(run_python):
    done = run_python(
        "from npu_runtime.collect_env import collect; got = collect()\n"
        "print(got['devices'], got['driver_error'][-15:], got['doctor']['verdict'])",
        NPU_DEVICE="NPU",
    )
    assert done.stdout.startswith("[] [device-absent]"), done.stderr
    assert "Nothing can serve as npu while NPU_DEVICE=NPU" in done.stdout


def test_a_package_that_is_missing_is_said_to_be():
    assert collect_env._version("no-such-package") == "not installed"


def test_what_is_shared_names_neither_the_user_nor_the_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(collect_env.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(collect_env.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(collect_env.socket, "gethostname", lambda: "engine")
    monkeypatch.setenv("NPU_STRANGE", f"{tmp_path}/cache of ada on engine, adamant engine-room")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/secret")
    assert command(["--share"]) == 0
    values = json.loads(capsys.readouterr().out)
    strange = values["environment"]["NPU_STRANGE"]
    assert strange == "~/cache of <user> on <machine>, adamant engine-room"
    assert "LD_LIBRARY_PATH" not in values["environment"]
    assert values["packages"] == collect_env.collect()["packages"]
