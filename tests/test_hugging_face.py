"""transformers and accelerate with npu as their device: their choices and results."""

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

# A model, a dataset, and `train`: losses on the device that TrainingArguments chooses, as JSON.
START = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

def model():
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32))

def rows():
    drawn = torch.randint(0, 64, (24, 16), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in drawn]

def train(folder, resume=None, **options):
    arguments = TrainingArguments(
        **{"output_dir": folder, "per_device_train_batch_size": 4, "max_steps": 4,
           "logging_steps": 1, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
           "learning_rate": 1e-2, **options})
    trainer = Trainer(model=model(), args=arguments, train_dataset=rows(), eval_dataset=rows()[:4])
    trainer.train(resume_from_checkpoint=resume)
    log = trainer.state.log_history
    losses = [entry["loss"] for entry in log if "loss" in entry]
    return {"device": trainer.model.device.type,
            "losses": [*losses, trainer.evaluate()["eval_loss"]]}
"""

COMPARED = {
    "plain": {},
    "bf16": {"bf16": True},
    "accumulated": {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    "fused": {"optim": "adamw_torch_npu_fused"},
}

TRAIN_ALL = f"""{START}
kinds = {COMPARED!r}
results = {{}}
for name, options in kinds.items():
    npu = train(f"npu-{{name}}", **options)
    if "optim" in options:
        options = {{"optim": "adamw_torch_fused"}}
    results[name] = [npu, train(f"cpu-{{name}}", use_cpu=True, **options)]
saved = {{"save_strategy": "steps", "save_steps": 2}}
whole = train("whole", **saved)
results["resumed"] = [train("whole", resume="whole/checkpoint-2"), whole]
results["fp16"] = [train("fp16", fp16=True), results["plain"][1]]
print(json.dumps(results))
"""


def ran(run, code, environment):
    done = run("python", "-c", code, **{"NPU_AUTO": "1", **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def program(run):
    """Runs a program, by default with npu chosen; returns its last output, and its log. The
    libraries are imported before npu, as in a program that imports them first.
    """
    return lambda code, **environment: ran(run, code, environment)


@pytest.fixture
def new_program(run_new):
    """Runs a program as `program` does, in an interpreter that has imported nothing."""
    return lambda code, **environment: ran(run_new, code, environment)


def test_trainer_on_npu_has_the_losses_of_the_cpu(program):
    results, log = program(TRAIN_ALL)
    for name in COMPARED:
        npu, cpu = results[name]
        assert (npu["device"], cpu["device"]) == ("npu", "cpu"), name
        assert npu["losses"] == pytest.approx(cpu["losses"], abs=1e-5), name
    resumed, whole = results["resumed"]
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-6)
    half, full = results["fp16"]
    assert half["device"] == "npu"
    assert half["losses"] == pytest.approx(full["losses"], abs=1e-2)
    assert log.count("run on npu where no device is named: NPU_AUTO=1 requests it") == 1


def test_trainer_compiles_for_npu(program):
    code = f"""{START}
npu = train("npu", torch_compile_backend="npu")
print(json.dumps([npu, train("cpu", use_cpu=True)]))
"""
    (npu, cpu), _ = program(code)
    assert npu["device"] == "npu"
    assert npu["losses"] == pytest.approx(cpu["losses"], abs=1e-5)


# Each line prints which device was taken for a person who names none.
CHOICES = f"""{START}
import accelerate
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from transformers import AutoModelForCausalLM, pipeline
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({{"?": 0, "a": 1, "b": 2}}, unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?").save_pretrained("b")
BertForSequenceClassification(BertConfig(
    vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=16)).save_pretrained("b")
model().save_pretrained("llama")

def classify(**where):
    made = pipeline("text-classification", model="b", **where)
    return [made.device.type, made("a b")[0]["score"]]

def places(**where):
    loaded = AutoModelForCausalLM.from_pretrained("llama", **where)
    out = loaded.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False)
    return [sorted({{p.device.type for p in loaded.parameters()}}), out.tolist()]

found = {{
    "accelerator": accelerate.Accelerator().device.type,
    "pipeline": classify(),
    "auto": places(device_map="auto"),
    "cpu": places(device_map="cpu"),
    "pipeline -1": classify(device=-1),
}}
found |= {{
    "pipeline npu": classify(device="npu"),
    "within": places(device_map="auto", max_memory={{"npu": "1GB", "cpu": "1GB"}}),
    "split": places(device_map="auto", max_memory={{"npu": "60KB", "cpu": "1GB"}}),
    "named": places(device_map="npu"),
    "pipeline afterwards": classify(),
}}
print(json.dumps(found))
"""


def test_npu_is_taken_where_it_was_asked_for(program):
    found, _ = program(CHOICES)
    assert found["accelerator"] == "npu"
    for name in ("pipeline", "pipeline npu", "pipeline afterwards"):
        assert found[name][0] == "npu"
        assert found[name][1] == pytest.approx(found["pipeline -1"][1], abs=1e-6)
    assert found["pipeline -1"][0] == "cpu"
    assert found["auto"][0] == found["named"][0] == found["within"][0] == ["npu"]
    assert found["split"][0] == ["meta", "npu"]  # the parts on the CPU are copied when needed
    for name in ("auto", "named", "within", "split"):
        assert found[name][1] == found["cpu"][1], name


STANDS_IN = (
    "OpenVINO finds no NPU on this machine, so its CPU plugin serves as the npu device; "
    "NPU_AUTO=1 chooses npu"
)


def test_the_cpu_is_taken_where_its_plugin_stands_in_until_npu_is_named(program):
    found, log = program(CHOICES, NPU_AUTO="")
    assert found["accelerator"] == found["pipeline"][0] == "cpu"
    assert found["auto"][0] == ["cpu"]
    assert found["pipeline npu"][0] == found["pipeline afterwards"][0] == "npu"
    assert found["named"][0] == found["within"][0] == ["npu"]
    lines = [line for line in log.splitlines() if line.startswith("npu: ")]
    first, second = lines
    assert first.endswith("the CPU where no device is named: " + STANDS_IN)
    assert second.endswith("npu where no device is named: this process uses it already")


def test_it_can_be_switched_off(program):
    code = """
import json, torch, accelerate
from transformers.utils import is_torch_npu_available
print(json.dumps([is_torch_npu_available(), accelerate.Accelerator().device.type,
                  torch.ones(2, device="npu").sum().item()]))
"""
    found, log = program(code, NPU_HUGGINGFACE="0")
    assert found == [False, "cpu", 2.0]
    assert "npu: " not in log


# Patches of the libraries for npu.
TOLD = """
import importlib.util
from transformers import Trainer, is_torch_npu_available
from transformers.utils import is_torch_bf16_gpu_available
from accelerate.utils import is_npu_available
import torch, peft.utils.other
told = [is_torch_npu_available(), is_torch_bf16_gpu_available(), is_npu_available(),
        peft.utils.other.infer_device(), "torch_npu" in sys.modules,
        importlib.util.find_spec("torch_npu") is not None]
"""
ALL_TOLD = [True, True, True, "npu", False, False]


@pytest.mark.parametrize("first", ["transformers", "accelerate", "peft"])
def test_the_libraries_are_told_whichever_is_imported_first(new_program, first):
    found, _ = new_program(f"import json, {first}, sys{TOLD}print(json.dumps(told))")
    assert found == ALL_TOLD


@pytest.mark.parametrize("first", ["torch", "transformers"])
def test_a_model_that_is_moved_off_npu_is_said_to_be(new_program, program, first):
    code = f"""{START}
arguments = TrainingArguments(output_dir="out", report_to=[])
on_npu = model().to("npu")
trainer = Trainer(model=on_npu, args=arguments)
from accelerate import Accelerator
moved = Accelerator().prepare(model().to("npu"))
named = TrainingArguments(output_dir="out", report_to=[], use_cpu=True)
Trainer(model=model().to("npu"), args=named)
print(json.dumps([trainer.model.device.type, moved.device.type]))
"""
    start = {"torch": new_program, "transformers": program}[first]
    found, log = start(code, NPU_AUTO="")
    assert found == ["cpu", "cpu"]
    moves = re.findall(r"npu: (\S+) moves the model from npu:0 to cpu", log)
    assert moves == ["Trainer", "Accelerator.prepare"]
    assert "Set NPU_AUTO=1" in log


def test_a_model_that_is_on_npu_already_stays_there(program):
    code = f"""{START}
on_npu = model().to("npu")
trainer = Trainer(model=on_npu, args=TrainingArguments(output_dir="out", report_to=[], bf16=True))
print(json.dumps([trainer.model.device.type, trainer.args.device.type]))
"""
    found, log = program(code, NPU_AUTO="")
    assert found == ["npu", "npu"]
    assert "moves the model" not in log


FLEX = f"""{START}
x = rows()[0]["input_ids"][None].repeat(2, 1)
mask = torch.ones_like(x)
mask[0, :5] = 0
labels = x.masked_fill(mask == 0, -100)
labels[0, 5] = -100  # what follows a position that sees nothing
found = []
for name, device in (("flex_attention", "npu"), ("eager", "cpu")):
    made = model().to(device)
    made.set_attn_implementation(name)
    out = made(x.to(device), attention_mask=mask.to(device), labels=labels.to(device))
    out.loss.backward()
    gradient = made.model.layers[0].self_attn.q_proj.weight.grad.cpu()
    found.append([out.logits.detach().cpu()[mask.bool()], gradient])
print(json.dumps([(one - other).abs().max().item() for one, other in zip(*found)]))
"""


def test_flex_attention_on_npu_is_attention(program):
    logits, gradient = program(FLEX)[0]
    assert logits < 1e-5
    assert gradient < 1e-5


ONE_TOKEN = f"""{START}
x, padding = torch.tensor([[3], [4], [5]]), torch.tensor([[1], [0], [1]])
found = []
for name, device in (("flex_attention", "npu"), ("eager", "cpu")):
    made = model().to(device)
    made.set_attn_implementation(name)
    out = made(x.to(device), attention_mask=padding.to(device))
    found.append(out.logits.detach().cpu()[padding.bool()])
print(json.dumps((found[0] - found[1]).abs().max().item()))
"""


@pytest.mark.long
def test_flex_attention_in_a_model_on_npu_needs_no_compiler(program):
    difference, _ = program(ONE_TOKEN, CXX="no-such-compiler")
    assert difference < 1e-5


TESTED = """
import json, os
os.environ["TRANSFORMERS_TEST_DEVICE"] = "npu"
from transformers.testing_utils import backend_device_count, require_torch_accelerator, torch_device
skipped = require_torch_accelerator(type("Tests", (), {}))
print(json.dumps([torch_device, backend_device_count(torch_device),
                  getattr(skipped, "__unittest_skip__", False)]))
"""


def test_transformers_own_tests_take_npu_by_name(program):
    found, _ = program(TESTED, NPU_AUTO="")
    assert found == ["npu", 1, False]


FLASH = f"""{START}
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM
set_seed(0)
MistralForCausalLM(MistralConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, sliding_window=4,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)).save_pretrained("m")
x = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(1))
mask = torch.ones_like(x)
mask[0, :5] = 0  # left padding, as batches of prompts have it
logits = []
for name, device in (("flash_attention_2", "npu"), ("eager", "cpu")):
    loaded = AutoModelForCausalLM.from_pretrained(
        "m", attn_implementation=name, dtype=torch.bfloat16).to(device)
    out = loaded(x.to(device), attention_mask=mask.to(device)).logits.float().cpu()
    logits.append(out[mask.bool()])
print(json.dumps([(logits[0] - logits[1]).abs().max().item(), logits[1].abs().max().item()]))
"""


def test_flash_attention_on_npu_is_attention(new_program):
    (difference, largest), _ = new_program(FLASH)
    assert difference < 0.02 * largest


def accelerated(arguments="", imported="Accelerator"):
    """A program that trains by accelerate; the losses of its steps are in `losses`."""
    return f"""
import json, torch
from accelerate import {imported}
from accelerate.utils import set_seed
accelerator = Accelerator({arguments})
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(0, 2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8 // accelerator.num_processes)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
"""


RANKS = f"""{accelerated()}
rank = accelerator.process_index
parts = [torch.full(shape, rank) for shape in ((), (2,), (2, 3))]
gathered = [accelerator.gather(part.to(accelerator.device)).tolist() for part in parts]
moved = model(torch.ones(3, 8)).device.type
if accelerator.is_main_process:
    print(json.dumps([str(accelerator.device), accelerator.state.backend, losses, gathered, moved]))
accelerator.end_training()
"""


TORCHRUN = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0")


@pytest.fixture
def two_ranks(run, tmp_path):
    """Runs a program as two processes with npu chosen; returns the last output of the first."""

    def ran(code, *arguments, launcher=TORCHRUN):
        (tmp_path / "ranks.py").write_text(code)
        done = run(*launcher, "ranks.py", *arguments, NPU_AUTO="1", OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ran


@pytest.mark.parametrize(
    "launcher", [TORCHRUN, pytest.param(ACCELERATE, marks=pytest.mark.long)], ids=lambda way: way[0]
)
def test_two_processes_share_the_device_and_have_the_losses_of_one(program, two_ranks, launcher):
    (_, _, expected, *_), _ = program(RANKS, NPU_AUTO="0")
    device, backend, losses, gathered, moved = two_ranks(RANKS, launcher=launcher)
    assert (device, backend) == ("npu:0", "npu_gloo")
    assert losses == pytest.approx(expected, abs=1e-5)
    zeros, ones = [0] * 3, [1] * 3
    assert gathered == [[0, 1], [0, 0, 1, 1], [zeros, zeros, ones, ones]]  # parts of any rank
    assert moved == "npu"  # the model moves inputs of the CPU


TRAINER_RANKS = f"""{START}
import os
torch.set_num_threads(1)
size = int(os.environ.get("WORLD_SIZE", 1))
result = train("trained", per_device_train_batch_size=4 // size, use_cpu=size == 1)
print(json.dumps(result))
"""


def test_trainer_in_two_processes_has_the_losses_of_the_cpu(program):
    one, _ = program(TRAINER_RANKS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ThreadPoolExecutor(2) as pool:
        ranks = [
            pool.submit(program, TRAINER_RANKS, RANK=rank, LOCAL_RANK=rank, **shared)
            for rank in "01"
        ]
        two, other = (rank.result()[0] for rank in ranks)
    assert two == other
    assert (one["device"], two["device"]) == ("cpu", "npu")
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)


SHARDING = """fsdp_plugin=FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1,
    state_dict_type="SHARDED_STATE_DICT")"""
SHARDED = f"""{accelerated(SHARDING, "Accelerator, FullyShardedDataParallelPlugin")}
kept = [parameter.full_tensor() for parameter in model.parameters()]
accelerator.save_state("state")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
accelerator.load_state("state")
is_back = all(map(torch.equal, kept, [one.full_tensor() for one in model.parameters()]))
if accelerator.is_main_process:
    print(json.dumps([kept[0].device.type, is_back, losses]))
accelerator.end_training()
"""


@pytest.mark.long
def test_sharded_parameters_train_as_whole_ones_and_are_saved(program, two_ranks):
    (_, _, expected, *_), _ = program(RANKS, NPU_AUTO="0")
    device, is_back, losses = two_ranks(SHARDED)
    assert (device, is_back) == ("npu", True)
    assert losses == pytest.approx(expected, abs=1e-5)


SPLIT = f"""{START}
import torch.distributed as dist
from transformers import AutoModelForCausalLM
dist.init_process_group()
if dist.get_rank() == 0:
    model().save_pretrained("llama")
dist.barrier()
x = torch.tensor([[1, 2, 3, 4, 5]])
split = AutoModelForCausalLM.from_pretrained("llama", tp_plan="auto").eval()
with torch.no_grad():
    found = split(x.to(split.device)).logits
    expected = AutoModelForCausalLM.from_pretrained("llama").eval()(x).logits
difference = (getattr(found, "full_tensor", lambda: found)().cpu() - expected).abs().max().item()
rows = split.model.layers[0].mlp.up_proj.weight.to_local().shape[0]
if dist.get_rank() == 0:
    print(json.dumps([str(split.device), rows, difference]))
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_model_is_split_over_two_processes(two_ranks):
    device, rows, difference = two_ranks(SPLIT)
    assert (device, rows) == ("npu:0", 32)  # of 64
    assert difference < 1e-5


CHECKPOINT = """
import json, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)).npu()
    fully_shard(model)
    return model

dist.init_process_group()
saved, read = made(0), made(1)
dcp.save(saved.state_dict(), checkpoint_id="checkpoint")
state = read.state_dict()
dcp.load(state, checkpoint_id="checkpoint")
read.load_state_dict(state)
are_equal = [torch.equal(one.full_tensor(), other.full_tensor())
             for one, other in zip(saved.parameters(), read.parameters())]
if dist.get_rank() == 0:
    print(json.dumps(are_equal))
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_distributed_checkpoint_is_read_again(two_ranks):
    assert two_ranks(CHECKPOINT) == [True] * 4


CACHES = f"""{START}
on_cpu = model().eval()
x = torch.tensor([[1, 2, 3, 4, 5]])
options = {{"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}}
expected = on_cpu.generate(x, **options)
on_npu = on_cpu.to("npu")
print(json.dumps([
    on_npu.generate(x.npu(), cache_implementation=name, **options).tolist() == expected.tolist()
    for name in ("offloaded", "offloaded_static", "static")]))
"""


def test_caches_that_are_kept_on_the_cpu_give_the_same_tokens(program):
    found, _ = program(CACHES)
    assert found == [True, True, True]


@pytest.mark.parametrize(
    "command", [pytest.param("accelerate", marks=pytest.mark.long), "transformers"]
)
def test_reports_name_the_device(run, command):
    done = run(command, "env", NPU_AUTO="1")
    assert done.returncode == 0, done.stderr
    assert "NPU" in re.search(r"PyTorch .*accelerator.*", done.stdout)[0]
    product = run("npu-runtime", "info", "--json")
    assert json.loads(product.stdout)["devices"][0]["full_name"] in done.stdout


IMPORTS_END = "all is imported"
IMPORTED = f"""
import json, sys, torch, transformers, accelerate
from transformers import Trainer
imported = sorted(sys.modules)
import peft
from transformers import AutoModelForCausalLM, pipeline
ours = sys.modules.get("npu_runtime._C")
is_open = ours is not None and ours.is_open()
print({IMPORTS_END!r}, file=sys.stderr)
"""


def test_imports_behind_torchs_open_no_device_add_modules_of_ours_and_are_told(new_program):
    shown = "print(json.dumps([imported, is_open, told]))"
    without, _ = new_program(f"{IMPORTED}told = []\n{shown}", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    (imported, is_open, told), log = new_program(f"{IMPORTED}{TOLD}{shown}")
    assert told == ALL_TOLD
    assert is_open is False
    assert "npu: " not in log.split(IMPORTS_END)[0]  # torchao, if installed, has separate ones
    added = set(imported) - set(without[0])
    assert "npu_runtime._C" in added
    ours = ("npu_command", "npu_ops", "npu_runtime", "npu_runtime_autoload", "torch.npu")
    assert [name for name in added if not re.match(rf"({'|'.join(ours)})(\.|$)", name)] == []


# Processor times of this thread in the patches, and of the imports around them.
COST = """
import compileall, json, sys, time
from pathlib import Path
from npu_command import import_hooks
ours = Path(import_hooks.__file__).parents[1] / "npu_runtime"
compileall.compile_dir(ours, quiet=1)  # as pip does, where this tree is installed editable
clock = time.thread_time
spent, asked = [0.0], [0]
begun = clock()
find = import_hooks._Finder.find_spec

def timed(function):
    def called(*arguments, **named):
        start = clock()
        try:
            return function(*arguments, **named)
        finally:
            spent[0] += clock() - start
    return called

def counted(*arguments):
    asked[0] += 1
    return find(*arguments)

import_hooks._Finder.find_spec = counted
import torch
hook = sys.modules["npu_runtime.library_patches.hooks"]
replacing = sys.modules["npu_runtime.library_patches.replacing"]
hook._begin, replacing._change = timed(hook._begin), timed(replacing._change)
sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, import_hooks._Finder)]
timed(hook.install)(hugging_face=True)
import transformers, accelerate
from transformers import Trainer
whole = clock() - begun
one = import_hooks._Finder("never", None)
start = clock()
for _ in range(10000):
    find(one, "another", None)
spent[0] += asked[0] * (clock() - start) / 10000
print(json.dumps([spent[0] / whole, asked[0]]))
"""


def test_what_it_adds_to_imports_is_a_hundredth_of_them_at_most(new_program):
    (share, asked), _ = new_program(COST)
    assert asked > 1000
    assert 0 < share < 0.01
