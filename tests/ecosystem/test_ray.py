"""Ray Train on npu: the guide's program, and the losses of one process."""

import json
import re

import pytest

ONE = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(3):
    torch.manual_seed(step)
    x, y = torch.randn(8, 8), torch.randint(0, 2, (8,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


def test_two_workers_have_the_losses_of_one_process(run, root, tmp_path):
    page = (root / "docs/guides/distributed.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (program,) = [snippet for snippet in snippets if snippet.startswith("# ray_train.py")]
    (tmp_path / "ray_train.py").write_text(program)
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = run("python", "ray_train.py", **settings)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "losses.json").read_text())
    expected = json.loads(run("python", "-c", ONE).stdout)
    assert found == {"device": "npu:0", "losses": pytest.approx(expected, abs=1e-5)}
