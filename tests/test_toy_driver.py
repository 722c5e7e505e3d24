"""The example wheel examples/toy_driver: built, installed apart, tested, and PyTorch run on it.

It is installed into a separate directory, not into the environment: an installed vendor's driver
comes before OpenVINO, and would serve every other test.
"""

import re
import shlex

import pytest

GUIDE = "docs/guides/writing-a-driver.md"


@pytest.fixture(scope="module")
def toy(root, pip, tmp_path_factory) -> dict[str, str]:
    """The environment variables with which Python finds the toy driver's wheel."""
    place = tmp_path_factory.mktemp("toy")
    flags = ("--no-deps", "--no-build-isolation", "--check-build-dependencies")
    pip("wheel", *flags, "-w", str(place / "wheels"), str(root / "examples" / "toy_driver"))
    (wheel,) = (place / "wheels").glob("*.whl")
    assert wheel.name.startswith("toy_driver-0.1.0-py3-none-linux")
    pip("install", "--no-deps", "--target", str(place / "site"), str(wheel))
    return {"PYTHONPATH": str(place / "site")}


def test_a_model_trains_on_it(run, toy):
    code = (
        "import torch\n"
        "torch.manual_seed(0)\n"
        "x, y = torch.randn(64, 8), torch.randn(64, 1)\n"
        "def losses(device):\n"
        "    torch.manual_seed(1)\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(),\n"
        "                                torch.nn.Linear(16, 1)).to(device)\n"
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)\n"
        "    seen = []\n"
        "    for _ in range(20):\n"
        "        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))\n"
        "        optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        "        seen.append(loss.item())\n"
        "    return torch.tensor(seen)\n"
        "on_toy, on_cpu = losses('npu'), losses('cpu')\n"
        "torch.testing.assert_close(on_toy, on_cpu)\n"
        "print(torch.npu.get_device_name(), bool(on_toy[-1] < on_toy[0]))"
    )
    done = run("python", "-c", code, NPU_DRIVER="toy", **toy)
    assert done.stdout.split()[-1] == "True", done.stderr
    assert "toy chip" in done.stdout


def test_an_installed_driver_comes_before_openvino(run, toy):
    code = "import npu_runtime; i = npu_runtime.device_info(); print(i.driver, i.device)"
    assert run("python", "-c", code, **toy).stdout.split() == ["toy", "TOY"]
    done = run("python", "-c", code, NPU_DRIVER="openvino", NPU_DEVICE="CPU", **toy)
    assert done.stdout.split() == ["openvino", "CPU"]


def test_its_programs_run_enqueued_and_in_order(run, toy):
    code = (
        "import torch, npu_runtime\n"
        "text = b'input x 4\\nvariable sum 4\\nt = add sum x\\nstore sum t\\noutput t\\n'\n"
        "options = {'INFERENCE_PRECISION_HINT': 'f32'}\n"
        "p = npu_runtime.load_program(text, name='sum', options=options)\n"
        "s = p.session(); x = torch.ones(4, device='npu')\n"
        "for _ in range(100): (y,) = s.run([x])\n"
        "print(y.cpu().tolist())"
    )
    done = run("python", "-c", code, NPU_DRIVER="toy", **toy)
    assert done.stdout.strip() == "[100.0, 100.0, 100.0, 100.0]", done.stderr


@pytest.mark.parametrize(
    "text, said",
    [
        ("input x 3\\noutput y\\n", "line 2: there is no value called y"),
        ("input x 3\\ninput y 4\\nz = add x y\\noutput z\\n", "line 3: 3 and 4 do not go together"),
        ("<net/>", "line 1: no statement looks like this"),
        ("weights w 99999999\\noutput w\\n", "line 1: the weights end before w"),
    ],
)
def test_a_text_that_is_wrong_is_an_error_with_its_line(run, toy, text, said):
    code = (
        "import npu_runtime\n"
        "try:\n"
        f"    npu_runtime.load_program(b'{text}', name='wrong',\n"
        "                             options={'INFERENCE_PRECISION_HINT': 'f32'})\n"
        "except npu_runtime.ProgramError as error:\n"
        "    print(error)"
    )
    done = run("python", "-c", code, NPU_DRIVER="toy", **toy)
    assert f"program_load: {said}" in done.stdout, done.stdout + done.stderr
    assert done.stdout.strip().endswith("[program-load]")


def test_the_guides_program_runs(run, root, toy):
    script = root / "examples" / "toy_driver" / "first_program.py"
    done = run("python", str(script), NPU_DRIVER="toy", **toy)
    assert done.stdout.strip() == "TOY [[2.5, 7.0], [7.0, 25.0]]", done.stderr


def console_blocks(text: str) -> list[tuple[str, list[str]]]:
    """Each command of the page's console blocks, with the lines that the page shows under it."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip().splitlines()
            found.append((command, lines))
    return found


def test_the_guides_commands_succeed_and_print_what_it_shows(run, root, toy):
    """The conformance test, the device's description, and an addition in PyTorch.

    `...` on the page stands for lines that are left out.
    """
    shown = console_blocks((root / GUIDE).read_text())
    assert shown[0][0] == "python -m npu_runtime.driver_conformance --driver toy"
    assert len(shown) == 3
    for command, lines in shown:
        words = shlex.split(command)
        variables = dict(word.split("=", 1) for word in words if re.match(r"NPU_\w+=", word))
        done = run(*words[len(variables) :], **variables, **toy)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        printed = iter(done.stdout.splitlines())
        for line in lines:
            if line != "...":
                assert line in printed, f"{command} did not print, in this order: {line}"
