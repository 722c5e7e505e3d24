import subprocess
import sys


def test_torch_alone_brings_the_device_and_its_kernels():
    program = "import torch; x = torch.randn(4, 4, device='npu'); print((x @ x).sum())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor(")
    assert "device='npu:0'" in done.stdout
    assert done.stderr == ""
