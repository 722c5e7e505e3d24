"""Lightning's Trainer and Fabric on npu: losses, precisions, checkpoints, processes."""

import json
import re

import pytest

# `losses(accelerator, ...)`: the results of a Trainer. Its batches are the same whatever processes
# share them, for Lightning shuffles with a sampler of its own unless it is told not to.
START = """
import json, os, sys, torch
import lightning
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))

def data():
    drawn = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(32, 8, generator=drawn), torch.randint(0, 2, (32,), generator=drawn))

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = net(), []

    def train_dataloader(self):
        size = self.trainer.world_size
        sampler = DistributedSampler(
            data(), num_replicas=size, rank=self.trainer.global_rank, shuffle=False)
        return DataLoader(data(), batch_size=8 // size, sampler=sampler)

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

def trainer(accelerator, devices=1, **options):
    return lightning.Trainer(
        **{"accelerator": accelerator, "devices": devices, "max_epochs": 1, "logger": False,
           "use_distributed_sampler": False, "enable_progress_bar": False,
           "enable_checkpointing": False, "enable_model_summary": False, **options})

def losses(accelerator, devices=1, **options):
    model, made = Model(), trainer(accelerator, devices, **options)
    made.fit(model)
    return [str(made.strategy.root_device), model.losses]
"""

ONE = f"""{START}
def resumed():
    whole, half = Model(), Model()
    trainer("npu", max_epochs=2).fit(whole)
    first = trainer("npu")
    first.fit(half)
    first.save_checkpoint("half.ckpt")
    again = Model()
    trainer("npu", max_epochs=2).fit(again, ckpt_path="half.ckpt")
    return [half.losses + again.losses, whole.losses]

class Stats(lightning.pytorch.callbacks.Callback):
    def on_train_end(self, trainer, module):
        stats = trainer.accelerator.get_device_stats(trainer.strategy.root_device)
        assert stats["allocated_bytes.all.current"] > 0

print(json.dumps({{
    "cpu": losses("cpu"), "npu": losses("npu", callbacks=[Stats()]), "auto": losses("auto"),
    "16-mixed": losses("npu", precision="16-mixed"),
    "bf16-mixed": losses("npu", precision="bf16-mixed"),
    "bf16-true": losses("npu", precision="bf16-true"), "resumed": resumed()}}))
"""

TWO = f"""{START}
if __name__ == "__main__":
    found = losses(sys.argv[1], devices=2)
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(json.dumps(found))
"""

# Processes that a strategy spawns, or among which one model's parameters are shared out.
STRATEGY = f"""{START}
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

class Told(Model):
    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def on_fit_end(self):
        if self.global_rank == 0:
            device = self.trainer.strategy.root_device
            print(json.dumps([str(device), self.losses]), flush=True)

if __name__ == "__main__":
    name = sys.argv[1]
    if name == "model_parallel":
        name = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer("npu", devices=2, strategy=name).fit(Told())
"""

FABRIC = f"""{START}
from lightning.fabric import Fabric

def run(accelerator, **options):
    fabric = Fabric(accelerator=accelerator, devices=1, **options)
    fabric.launch()
    model = net()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for x, y in fabric.setup_dataloaders(DataLoader(data(), batch_size=8)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        found.append(loss.item())
    fabric.save("fabric.ckpt", {{"model": model}})
    kept = [one.detach().clone() for one in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    fabric.load("fabric.ckpt", {{"model": model}})
    is_back = all(map(torch.equal, kept, model.parameters()))
    return [str(fabric.device), is_back, found]

print(json.dumps([
    run("cpu"), run("npu"), run("npu", precision="16-mixed"), run("auto")]))
"""


@pytest.fixture
def program(run, tmp_path):
    def ran(code, *arguments, **environment):
        (tmp_path / "program.py").write_text(code)
        settings = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
        done = run("python", "program.py", *arguments, **settings)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return ran


def test_the_trainer_has_the_losses_of_the_cpu_in_each_precision_and_goes_on(program):
    found, log = program(ONE, NPU_AUTO="1")
    _, expected = found["cpu"]
    assert found["npu"] == ["npu:0", pytest.approx(expected, abs=1e-5)]
    assert found["auto"] == found["npu"]
    for precision in ("16-mixed", "bf16-mixed", "bf16-true"):
        assert found[precision] == ["npu:0", pytest.approx(expected, abs=2e-2)], precision
        assert found[precision] != found["npu"]
    resumed, whole = found["resumed"]
    assert resumed == pytest.approx(whole, abs=1e-6)
    assert log.count("npu: Lightning runs on npu where no device is named: NPU_AUTO=1") == 1


def test_fabric_has_the_losses_of_the_cpu_and_its_checkpoints(program):
    (cpu, npu, half, auto), log = program(FABRIC)
    assert npu == ["npu:0", True, pytest.approx(cpu[2], abs=1e-5)]
    assert half == ["npu:0", True, pytest.approx(cpu[2], abs=2e-2)]
    # This process uses npu by then, by choice.
    assert auto[0] == "npu:0"
    assert "npu where no device is named: this process uses it already" in log


def test_two_processes_share_the_device_and_have_the_losses_of_one(program):
    one, _ = program(f"{START}\nprint(json.dumps(losses('cpu')))")
    for accelerator, device in (("cpu", "cpu"), ("npu", "npu:0")):
        two, _ = program(TWO, accelerator)
        assert two == [device, pytest.approx(one[1], abs=1e-5)]


def test_spawned_processes_and_shared_out_parameters_have_the_losses_of_one(program):
    one, _ = program(f"{START}\nprint(json.dumps(losses('cpu')))")
    for strategy in ("ddp_spawn", "model_parallel"):
        two, _ = program(STRATEGY, strategy)
        assert two == ["npu:0", pytest.approx(one[1], abs=1e-5)], strategy


def test_devices_that_are_not_there_are_refused_in_one_sentence(run):
    code = "import lightning; lightning.Trainer(accelerator='npu', devices=[3])"
    done = run("python", "-c", code)
    assert done.returncode != 0
    assert re.search(
        r"devices is a number of processes.*got \[3\].*\[lightning-devices\]", done.stderr
    )


def test_the_guide_runs(run, root, tmp_path):
    text = (root / "docs/guides/lightning.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    for number, snippet in enumerate(snippets):
        (tmp_path / f"snippet_{number}.py").write_text(snippet)
        done = run("python", f"snippet_{number}.py")
        assert done.returncode == 0, done.stderr
        assert "npu:0" in done.stdout
