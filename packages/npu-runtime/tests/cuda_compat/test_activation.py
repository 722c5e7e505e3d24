"""Programs for cuda on npu; each test switches it on, and off again."""

import io
import pickle
import warnings

import pytest
import torch

from npu_runtime import cuda_compat

NPU = torch.device("npu:0")


@pytest.fixture(autouse=True)
def _cuda_means_npu():
    with cuda_compat.transferred():
        yield
    assert not cuda_compat.is_active()


@pytest.mark.parametrize("place", ["cuda", "cuda:0"])
def test_factories_and_moves_take_the_name(place):
    x = torch.arange(4.0)
    made = (
        torch.ones(2, device=place),
        torch.tensor([1, 2], device=torch.device(place)),
        torch.zeros_like(x, device=place),
        torch.randint(3, (2,), device=place),
        torch.sparse_coo_tensor([[0]], [1.0], (2,), device=place, check_invariants=True).to_dense(),
        x.to(place),
        x.to(torch.device(place), torch.float16),
        x.to(device=place),
        x.new_zeros(3, device=place),
        x.cuda(),
        x.cuda(0),
        x.cuda(place),
        x.untyped_storage().cuda(),
    )
    assert [value.device for value in made] == [NPU] * len(made)


def test_tensors_say_that_they_are_on_the_accelerator():
    assert torch.ones(1, device="cuda").is_cuda
    assert not torch.ones(1).is_cuda


def test_modules_move():
    for module in (
        torch.nn.Linear(2, 2).cuda(),
        torch.nn.Linear(2, 2).cuda(0),
        torch.nn.Linear(2, 2).to("cuda"),
        torch.nn.Linear(2, 2).to(torch.device("cuda"), torch.float64),
        torch.nn.Linear(2, 2, device="cuda"),
        torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda"),
    ):
        assert {parameter.device for parameter in module.parameters()} == {NPU}


def test_a_device_is_still_a_device():
    device = torch.device("cuda:0")
    assert isinstance(device, torch.device)
    assert (device.type, device.index) == ("npu", 0)
    assert pickle.loads(pickle.dumps(device)) == device
    assert torch.device("cpu").type == "cpu"
    with device:
        assert torch.ones(1).device == NPU
        assert torch.get_default_device() == NPU


def test_generators_are_generators():
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.rand(2, device="cuda", generator=generator).device == NPU


def test_the_module_answers_for_npu():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch.npu.device_count()
    assert torch.cuda.get_device_name("cuda:0") == torch.npu.get_device_name()
    assert torch.cuda.get_device_capability() == (8, 0)
    properties = torch.cuda.get_device_properties(0)
    assert (properties.major, properties.minor, properties.multi_processor_count) == (8, 0, 1)
    assert properties.total_memory == torch.npu.get_device_properties().total_memory
    assert torch.cuda.is_bf16_supported()
    x = torch.ones(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated("cuda") >= x.nbytes
    assert torch.cuda.memory.memory_allocated() >= x.nbytes
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.current_stream()):
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 60, device="cuda")


def test_seeds_and_states():
    torch.cuda.manual_seed_all(4)
    state = torch.cuda.get_rng_state("cuda:0")
    first = torch.rand(3, device="cuda")
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.cuda.random.manual_seed(9)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), first)


def test_types_of_old_code():
    assert torch.cuda.FloatTensor(2, 3).device == NPU
    assert torch.ones(2).type("torch.cuda.HalfTensor").dtype == torch.float16
    assert torch.ones(2).type(torch.cuda.LongTensor).device == NPU
    assert isinstance(torch.ones(2, device="cuda"), torch.cuda.FloatTensor)


@pytest.mark.parametrize("way", ["torch", "torch.amp", "torch.cuda.amp"])
def test_autocast_is_npus(way):
    x = torch.ones(2, 2, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.cuda.amp is deprecated
        context = {
            "torch": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
            "torch.amp": lambda: torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16),
            "torch.cuda.amp": lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16),
        }[way]()
    with context:
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype() == torch.bfloat16
    assert not torch.is_autocast_enabled()


@pytest.mark.parametrize("way", ["torch.amp", "torch.cuda.amp"])
def test_a_step_with_a_scaler(way):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scaler = torch.amp.GradScaler() if way == "torch.amp" else torch.cuda.amp.GradScaler()
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    scaler.scale(weight.sum()).backward()
    scaler.step(torch.optim.SGD([weight], lr=1))
    scaler.update()
    assert weight.tolist() == [0, 0]
    assert scaler._scale.device == NPU


def test_set_autocast_enabled_without_a_device():
    torch.set_autocast_enabled(True)
    try:
        assert torch.npu.is_autocast_enabled()
    finally:
        torch.set_autocast_enabled(False)


@pytest.fixture
def checkpoint(monkeypatch):
    """The output of torch.save on a machine with CUDA."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    buffer = io.BytesIO()
    torch.save(torch.arange(3.0), buffer)
    monkeypatch.undo()
    return buffer.getvalue()


PLACES = [
    (None, "npu"),
    ("cuda", "npu"),
    ("cuda:0", "npu"),
    ("cpu", "cpu"),
    ({"cuda:0": "cpu"}, "cpu"),
    ({"cuda:0": "cuda:0"}, "npu"),
]


@pytest.mark.parametrize("place, expected", PLACES)
def test_a_file_from_a_cuda_machine_loads(checkpoint, place, expected):
    loaded = torch.load(io.BytesIO(checkpoint), map_location=place)
    assert loaded.device.type == expected
    assert loaded.tolist() == [0, 1, 2]


def test_a_file_from_a_cpu_loads_to_cuda_by_a_map():
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location={"cpu": "cuda"}).device == NPU


def test_a_loader_pins():
    loader = torch.utils.data.DataLoader(
        torch.arange(4), batch_size=2, pin_memory=True, pin_memory_device="cuda"
    )
    batches = [batch.cuda(non_blocking=True) for batch in loader]
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_ranges():
    torch.cuda.nvtx.range_push("step")
    assert torch.cuda.nvtx.range_pop() == 0


def test_compiled_functions_may_name_the_device():
    compiled = torch.compile(lambda x: x + torch.ones(2, device="cuda"), backend="eager")
    assert compiled(torch.ones(2).cuda()).tolist() == [2, 2]


def test_switching_on_twice_and_inside_is_harmless():
    cuda_compat.activate()
    with cuda_compat.transferred():
        pass
    assert cuda_compat.is_active()
    assert torch.ones(1, device="cuda").device == NPU


def test_recipes_for_memory_and_graphs_work(tmp_path):
    torch.cuda.memory._record_memory_history(max_entries=100)
    kept = torch.ones(10, device="cuda")
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(None)
    snapshot = pickle.loads(path.read_bytes())
    assert kept.sum().item() == 10
    assert any(entry["action"] == "alloc" for entry in snapshot["device_traces"][0])
    assert torch.cuda.graphs.CUDAGraph is torch.cuda.CUDAGraph is torch.npu.NPUGraph
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=torch.cuda.graph_pool_handle()):
        assert torch.cuda.is_current_stream_capturing()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device="cuda:0"):
        torch.ones(10, device="cuda")
    assert pool.snapshot()
    assert torch.cuda.host_memory_stats()["num_host_alloc"] >= 0
