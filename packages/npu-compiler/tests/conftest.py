"""Fixtures: lower a function and compare with eager; compile a model and compare with eager."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import forked_python
from npu_compiler.graph_compiler.records import GraphRecord, collecting
from npu_compiler.lowering import LoweredModel, lower
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.rewriting import rewrite_for_npu
from npu_compiler.programs import compile_options, load_tolerant
from npu_compiler.target_compiler import targets
from npu_runtime import device_info

# Refusals of the rules without dynamic sizes, which the device NPU never gets.
NO_EQUAL_FORM = frozenset({"Tan (opset1)"})

# Largest relative error of a single op against eager, by the precision that is computed in.
TOLERANCE = {
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}

# Imported once for all child processes of a worker: the imports of torch.compile, and OpenVINO.
PRELOAD = ("torch._dynamo", "torch._functorch.aot_autograd", "openvino.opset15")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs of tests are kept for one run, apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        yield


@pytest.fixture(scope="session")
def on_npu() -> bool:
    """Whether the device is an NPU, or a stub of one: each of its programs has one shape."""
    return device_info().device.startswith("NPU")


@pytest.fixture(autouse=True, scope="session")
def for_npu(on_npu: bool) -> Iterator[bool]:
    """Whether programs are held to the rules of the NPU's compiler: NPU_COMPILE_TARGET=NPU.

    On others small graphs are compiled by the device's compiler too; tests of kernels ask for
    these.
    """
    held = on_npu or os.environ.get("NPU_COMPILE_TARGET") == "NPU"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_COMPILE_TARGET", "NPU" if held else "openvino")
        yield held


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@dataclass(frozen=True)
class Lowered:
    """A lowered function, its results and the reference's."""

    lowered: LoweredModel
    results: list[Any]
    expected: list[Any]


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of this interpreter, with torch and its compiler already imported."""
    return functools.partial(forked_python.run, preload=PRELOAD)


@pytest.fixture(scope="session")
def start_python() -> Callable[..., Any]:
    """Starts a command of this interpreter, with torch and its compiler already imported."""
    return functools.partial(forked_python.start, preload=PRELOAD)


@pytest.fixture
def without_torch() -> dict[str, str]:
    """The environment of a process without torch, which runs models by OpenVINO's Python interface.

    A stub of an NPU replaces the C interface alone, so that the CPU serves there.
    """
    served = {"NPU_DEVICE": "CPU"} if "NPU_OPENVINO_LIBRARY" in os.environ else {}
    return {**os.environ, **served}


@pytest.fixture
def lowers(on_npu: bool, for_npu: bool) -> Callable[..., Lowered]:
    """Lowers a function on example inputs, runs it, and compares results with eager.

    Functions by name are lowered as one program, since a program costs more than the calls in it.
    Each is compared by itself, and a failure names all that differ.

    On an NPU a function whose sizes vary is lowered as for a bucket: for the sizes that it runs on.
    """

    def check(
        function: Callable[..., Any] | Mapping[str, Callable[..., Any]],
        *inputs: torch.Tensor,
        dynamic: bool = False,
        run_on: tuple[torch.Tensor, ...] | None = None,
        whole: bool = False,
        tolerance: float | None = None,
    ) -> Lowered:
        named = function if isinstance(function, Mapping) else {"": function}
        function = lambda *given: [each(*given) for each in named.values()]  # noqa: E731
        used = run_on or inputs
        varies = dynamic and not on_npu
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = make_fx(
                function, tracing_mode="symbolic" if varies else "fake", pre_dispatch=whole
            )(*(inputs if varies else used))
        traced.graph.eliminate_dead_code()
        lowered = lower(traced, fixed_sizes=for_npu)
        if for_npu:
            rewrite_for_npu(lowered.model, generation="4000")
            found = check_operations(lowered.model, generation="4000")
            refused = {one.operation for one in found if one.verdict == "refused"}
            assert refused <= NO_EQUAL_FORM
        calls = [n for n in traced.graph.nodes if n.op == "call_function"]
        assert lowered.node_count == len(calls)
        names = [n.name for n in traced.graph.nodes if n.op == "placeholder"]
        given = dict(zip(names, used, strict=True))
        precision = _precision(used)
        program = load_tolerant(lowered.model, name="test", options=compile_options(precision))
        outputs = program.run(
            [given[name].contiguous() for name in lowered.input_names], output_device="cpu"
        )
        results = [outputs[index] for index in lowered.outputs if index is not None]
        leaves = {name: pytree.tree_leaves(each(*used)) for name, each in named.items()}
        owners = [name for name, references in leaves.items() for _ in references]
        expected = [reference for references in leaves.values() for reference in references]
        allowed = TOLERANCE[precision] if tolerance is None else tolerance
        faults: dict[str, str] = {}
        for name, result, reference in zip(owners, results, expected, strict=True):
            try:
                assert_close(result, reference, allowed)
            except AssertionError as fault:
                if not name:
                    raise
                faults.setdefault(name, str(fault))
        assert not faults, "\n".join(f"{name}: {fault}" for name, fault in faults.items())
        return Lowered(lowered, results, expected)

    return check


@dataclass(frozen=True)
class Compiled:
    """A compiled function and its records so far."""

    function: Callable[..., Any]
    records: list[GraphRecord]

    @property
    def programs(self) -> int:
        return sum(len(record.programs) for record in self.records)

    @property
    def eager_ops(self) -> list[str]:
        return [node.op for record in self.records for node in record.eager]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.fixture
def compiled() -> Iterator[Callable[..., Compiled]]:
    """Compiles by torch.compile(backend="npu") and collects events until the test ends."""
    with collecting() as records:

        def make(function: Callable[..., Any], **options: Any) -> Compiled:
            return Compiled(torch.compile(function, backend="npu", **options), records)

        yield make


def assert_close(result: Any, reference: Any, tolerance: float) -> None:
    assert isinstance(result, torch.Tensor)
    assert result.dtype == reference.dtype
    assert result.shape == reference.shape
    result, reference = result.detach().cpu(), reference.detach().cpu()
    if not reference.dtype.is_floating_point:
        assert torch.equal(result, reference)
        return
    left, right = result.double(), reference.double()
    assert torch.equal(left.isnan(), right.isnan())
    assert torch.equal(left.isinf(), right.isinf())
    finite = right.isfinite()
    left, right = left[finite], right[finite]
    if right.numel() == 0:
        return
    scale = max(float(right.abs().max()), 1e-6)
    error = float((left - right).abs().max()) / scale
    assert error <= tolerance, f"relative error {error:.2e} is above {tolerance:.0e}"


@pytest.fixture
def close() -> Callable[..., None]:
    """Compares nested results leaf by leaf."""

    def compare(result: Any, reference: Any, tolerance: float = 2e-5) -> None:
        left = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        right = [x for x in pytree.tree_leaves(reference) if isinstance(x, torch.Tensor)]
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_close(a, b, tolerance)

    return compare


@pytest.fixture
def overflowing_gemma() -> torch.nn.Module:
    """A Gemma with scaled embeddings that overflow in float16; its vocabulary has 50 tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GemmaConfig(
        vocab_size=50, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    model: torch.nn.Module = transformers.GemmaModel(config).eval()
    with torch.no_grad():
        model.embed_tokens.weight.mul_(3e5)  # fits; times 8, the root of the width, does not
    return model


def _precision(inputs: tuple[torch.Tensor, ...]) -> torch.dtype:
    floats = {tensor.dtype for tensor in inputs if tensor.dtype.is_floating_point}
    return next(iter(floats)) if len(floats) == 1 else torch.float32


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the interface of Intel's NPU compiler; option FAKE sets its behaviour."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("fake") / "libfake_vcl.so"
    source = Path(__file__).with_name("target_compiler") / "fake_vcl.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return library


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no compiler of this machine."""
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NPU_TARGET_COMPILER", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("npu_compiler.target_compiler.sources._FOLDERS", ())
    return tmp_path / "cache"


@pytest.fixture
def installed(fake_library: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library as the compiler that the user named."""
    monkeypatch.setenv("NPU_TARGET_COMPILER", str(fake_library))
    return home


@pytest.fixture
def fake_vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The vendor of another wheel; torch computes its programs in float16."""
    value = "fake_vendor:FakeVendor"
    entry = EntryPoint("fake", value, targets.GROUP)
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("target_compiler")))
    monkeypatch.setattr(targets, "entry_points", lambda *, group: [entry])
    targets.vendors.cache_clear()
    yield targets.find_vendor("fake")
    targets.vendors.cache_clear()
