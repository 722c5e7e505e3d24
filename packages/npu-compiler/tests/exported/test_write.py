"""Exported folders: load computes the module's results, and reports damage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections import namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import npu_compiler
import npu_runtime
from npu_compiler.errors import ExportError, LoweringError, OptionError
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.blobs import fingerprint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

Pair = namedtuple("Pair", ["mean", "rest"])


class Model(nn.Module):
    """Attention, norms, a mask by name, in-place work, and a nested result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.register_buffer("shift", torch.randn(32), persistent=False)

    def forward(self, x, mask=None, scale=2.0):
        y = self.norm(F.gelu(self.inner(x))).add_(self.shift)
        z, _ = self.attention(y, y, y, key_padding_mask=mask, need_weights=False)
        return {"last": z * scale, "parts": (y, [x, None, 3])}


def folder_of(tmp_path, model, *args, **options):
    return npu_compiler.export(model, args, tmp_path / "model", **options)


def test_a_program_of_torch_export_is_a_model(tmp_path, close):
    program = torch.export.export(nn.Linear(3, 2), (torch.randn(4, 3),))
    model, x = program.module(), torch.randn(4, 3)
    loaded = npu_compiler.load(folder_of(tmp_path, model, x))
    close(loaded(x), model(x))


def test_result_and_its_structure_equal_the_module(tmp_path, close):
    model, x = Model().eval(), torch.randn(2, 5, 16)
    loaded = npu_compiler.load(folder_of(tmp_path, model, x))
    result = loaded(x)
    assert list(result) == ["last", "parts"]
    assert isinstance(result["parts"], tuple)
    assert result["parts"][1][1:] == [None, 3]
    close(result, model(x))
    assert repr(loaded) == "LoadedModel('Model', float32, 1 in, 3 out)"


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_tensors_and_arrays_go_in_and_come_out(tmp_path, device):
    model = nn.Linear(8, 4).to(device)
    x = torch.randn(3, 8, device=device)
    loaded = npu_compiler.load(folder_of(tmp_path, model, x))
    result = loaded(x)
    assert result.device.type == device
    array = loaded(x.cpu().numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, model(x).detach().cpu().numpy(), rtol=1e-5, atol=1e-5)


def test_inputs_are_taken_by_name(tmp_path, close):
    model, x = Model().eval(), torch.randn(2, 5, 16)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    loaded = npu_compiler.load(folder_of(tmp_path, model, x, kwargs={"mask": mask}))
    assert [(port.name, port.dtype) for port in loaded.inputs] == [
        ("x", "float32"),
        ("mask", "bool"),
    ]
    close(loaded(x, mask=mask)["last"], model(x, mask)["last"], 1e-4)


def test_dynamic_sizes_vary_where_asked(tmp_path, close):
    model = Model().eval()
    path = folder_of(tmp_path, model, torch.randn(2, 5, 16), dynamic={"x": (0, 1)})
    loaded = npu_compiler.load(path)
    assert loaded.inputs[0].shape == ("x.0", "x.1", 16)
    assert loaded.outputs[0].shape == ("x.0", "x.1", 32)
    for shape in [(1, 1, 16), (4, 9, 16), (1, 3, 16)]:
        x = torch.randn(shape)
        close(loaded(x), model(x))


def test_module_is_left_as_it_was(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    model[1].eval()
    folder_of(tmp_path, model, torch.ones(1, 4))
    assert model.training
    assert not model[1].training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_named_tuples_become_dicts(tmp_path, close):
    class Named(nn.Module):
        def forward(self, x):
            return Pair(x.mean(), [x + 1])

    x = torch.randn(3)
    result = npu_compiler.load(folder_of(tmp_path, Named(), x))(x)
    assert sorted(result) == ["mean", "rest"]
    close(result["rest"], [x + 1])


def test_unread_input_is_still_an_input(tmp_path, close):
    class Ignores(nn.Module):
        def forward(self, x, unread, y):
            return x - y

    inputs = [torch.randn(3) for _ in range(3)]
    loaded = npu_compiler.load(folder_of(tmp_path, Ignores(), *inputs))
    assert [port.name for port in loaded.inputs] == ["x", "unread", "y"]
    close(loaded(*inputs), inputs[0] - inputs[2])


@pytest.mark.parametrize("dtype, bound", [("int8", 0.01), ("int4", 0.1)])
def test_compressed_weights_are_smaller_on_disk(tmp_path, dtype, bound):
    model, x = nn.Linear(256, 256, bias=False), torch.randn(4, 256)
    path = folder_of(tmp_path, model, x, dtype=dtype)
    limit = {"int8": 0.27, "int4": 0.16}[dtype]
    assert (path / "model.bin").stat().st_size < limit * model.weight.nbytes
    loaded = npu_compiler.load(path)
    expected = model(x).detach()
    assert (loaded.manifest.compression, loaded.precision) == (dtype, "float32")
    assert 0 < float((loaded(x) - expected).norm() / expected.norm()) < bound


def test_bfloat16_ports_take_float32_arrays(tmp_path):
    model, x = nn.Linear(16, 8).bfloat16(), torch.randn(2, 16)
    path = folder_of(tmp_path, model, x.bfloat16())
    expected = model(x.bfloat16()).float().detach().numpy()
    for loaded in (npu_compiler.load(path), npu_compiler.load(path, device="CPU")):
        result = loaded(x.numpy())
        assert (loaded.inputs[0].dtype, result.dtype) == ("bfloat16", np.float32)
        np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2)


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not here")

sys.meta_path.insert(0, NoTorch())
import numpy as np
import npu_compiler
from npu_compiler import ExportError

loaded = npu_compiler.load(sys.argv[1])
x = np.load(sys.argv[2])
first, second = loaded(x), loaded(x)
np.save(sys.argv[3], first["last"])
assert not np.shares_memory(first["last"], second["last"])
try:
    loaded(x[:, :, :3])
except ExportError as error:
    print(error.code, isinstance(error, ValueError))
print([name for name in sys.modules if name.partition(".")[0] == "torch"])
"""


def test_load_needs_no_torch(tmp_path, without_torch):
    model, x = Model().eval(), torch.randn(2, 5, 16)
    path = folder_of(tmp_path, model, x)
    np.save(tmp_path / "x.npy", x.numpy())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, path, tmp_path / "x.npy", tmp_path / "y.npy"],
        env=without_torch,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["export-input True", "[]"]
    expected = model(x)["last"].detach().numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-5)


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        scaled = self.layer(image.permute(0, 3, 1, 2).to(torch.float32) / 255)
        return scaled, (scaled * 300).to(torch.uint8)


def test_image_of_bytes_is_exported_and_loaded_without_torch(tmp_path, without_torch):
    model = Image().eval()
    image = torch.arange(8 * 8 * 3).reshape(1, 8, 8, 3).to(torch.uint8)
    path = folder_of(tmp_path, model, image)
    with torch.no_grad():
        expected = [part.numpy() for part in model(image)]
    loaded = npu_compiler.load(path)
    assert loaded.inputs[0].dtype == "uint8"
    results = [part.numpy() for part in loaded(image)]
    np.save(tmp_path / "x.npy", image.numpy())
    script = """
        import sys, numpy as np, npu_compiler
        first, second = npu_compiler.load(sys.argv[1])(np.load(sys.argv[2]))
        assert "torch" not in sys.modules
        np.savez(sys.argv[3], first, second)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path, tmp_path / "x.npy", tmp_path / "y"],
        env=without_torch,
        timeout=120,
        check=True,
    )
    with np.load(tmp_path / "y.npz") as kept:
        alone = [kept["arr_0"], kept["arr_1"]]
    for found in (results, alone):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
        # A product that is rounded differently may be on the other side of an integer.
        assert (found[1] != expected[1]).mean() < 0.02


def test_torch_imported_after_load_meets_the_same_errors(tmp_path, without_torch):
    path = folder_of(tmp_path, nn.Linear(4, 4), torch.ones(1, 4))
    script = """
        import sys, npu_compiler
        loaded = npu_compiler.load(sys.argv[1])
        assert "torch" not in sys.modules
        import torch, npu_runtime
        assert issubclass(npu_compiler.ExportError, npu_runtime.NpuError)
        print(tuple(loaded(torch.ones(1, 4, device="npu")).shape))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path],
        env=without_torch,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "(1, 4)", done.stderr


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x + self.count


class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class ReturnsSet(nn.Module):
    def forward(self, x):
        return {1: x * 2}


class Qr(nn.Module):
    def forward(self, x):
        return torch.linalg.qr(x)[0]


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(2, 8) + torch.ones(2, 8)


@pytest.mark.parametrize(
    "model, options, kind, code, text",
    [
        (Writes(), {}, ExportError, "export-writes", "writes to count"),
        (Branches(), {}, ExportError, "export-capture", "npu_compiler.compile"),
        (ReturnsSet(), {}, ExportError, "export-output", "dicts with names, got dict"),
        (Qr(), {}, LoweringError, "no-converter", "aten.linalg_qr"),
        (Fixed(), {"dynamic": {"x": (0,)}}, ExportError, "export-dynamic", "x"),
        (Fixed(), {"dynamic": {"y": (0,)}}, ExportError, "export-dynamic", "got 'y'"),
        (Fixed(), {"dynamic": {"x": (2,)}}, ExportError, "export-dynamic", "below 2, got 2"),
        (Fixed(), {"dtyp": "int8"}, OptionError, "unknown-option", "'dtype'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_model_that_cannot_be_exported_is_refused(tmp_path, model, options, kind, code, text):
    with pytest.raises(kind) as error:
        folder_of(tmp_path, model, torch.ones(4, 4), **options)
    assert error.value.code == code
    assert text in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_what_lies_at_the_path_stays_unless_asked(tmp_path, close):
    model, x = nn.Linear(4, 4), torch.randn(1, 4)
    folder_of(tmp_path, nn.Linear(4, 4), x)
    with pytest.raises(ExportError, match=r"overwrite=True.*\[export-exists\]"):
        folder_of(tmp_path, model, x)
    path = folder_of(tmp_path, model, x, overwrite=True)
    close(npu_compiler.load(path)(x), model(x))


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """A folder that tests copy before they change it."""
    return folder_of(tmp_path_factory.mktemp("linear"), nn.Linear(4, 4), torch.ones(2, 4))


@pytest.fixture(scope="module")
def loaded_linear(linear):
    return npu_compiler.load(linear)


@pytest.mark.parametrize(
    "args, kwargs, text",
    [
        ((torch.ones(2, 5),), {}, "must have shape (2, 4), got (2, 5)"),
        ((torch.ones(2, 4).double(),), {}, "must have dtype float32, got float64"),
        ((), {}, "got none"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {}, "got #0, #1"),
        ((torch.ones(2, 4),), {"input": torch.ones(2, 4)}, "each once"),
        ((), {"x": torch.ones(2, 4)}, "inputs must be input"),
        (("text",), {}, "must have dtype float32"),
    ],
)
def test_call_that_does_not_fit_is_an_error(loaded_linear, args, kwargs, text):
    with pytest.raises(ExportError) as error:
        loaded_linear(*args, **kwargs)
    assert error.value.code == "export-input"
    assert text in str(error.value)


def test_sizes_that_must_be_equal_are_checked(tmp_path):
    class Add(nn.Module):
        def forward(self, x, y):
            return x + y

    inputs = torch.ones(3, 2), torch.ones(3, 2)
    path = folder_of(tmp_path, Add(), *inputs, dynamic={"x": (0,), "y": (0,)})
    with pytest.raises(ExportError, match=r"'y' must have shape \(x.0 \(>= 1, here 3\), 2\)"):
        npu_compiler.load(path)(torch.ones(3, 2), torch.ones(4, 2))


INPUT = {"name": "input", "dtype": "float32", "port": 0}


@pytest.mark.parametrize(
    "damage, code, text",
    [
        (lambda path: (path / "manifest.json").unlink(), "export-absent", "manifest.json"),
        (lambda path: (path / "manifest.json").write_text("{"), "export-corrupt", "cannot be read"),
        (lambda path: (path / "model.bin").unlink(), "export-corrupt", "model.bin is missing"),
        (
            lambda path: (path / "model.bin").write_bytes(b"x"),
            "export-corrupt",
            "model.bin does not",
        ),
        (lambda path: change(path, format=99), "export-format", "got 99"),
        (lambda path: change(path, precision="float3"), "export-corrupt", "float3"),
        (
            lambda path: change(path, structure={"tensor": 7}),
            "export-corrupt",
            "an invalid structure",
        ),
        (lambda path: change(path, inputs=None), "export-corrupt", "invalid structure"),
        (lambda path: change(path, precision=["float32"]), "export-corrupt", "for a text"),
        (lambda path: change(path, name=7), "export-corrupt", "7 for a text"),
        (lambda path: change(path, files=[]), "export-corrupt", "the files []"),
        (
            lambda path: change(path, inputs=[{**INPUT, "shape": [[1], 64]}]),
            "export-corrupt",
            "the shape [[1], 64]",
        ),
        (
            lambda path: (path / "manifest.json").write_text("[" * 100_000),
            "export-corrupt",
            "recursion",
        ),
    ],
)
def test_damaged_folder_is_an_error(linear, tmp_path, damage, code, text):
    path = shutil.copytree(linear, tmp_path / "model")
    damage(path)
    with pytest.raises(ExportError) as error:
        npu_compiler.load(path)
    assert error.value.code == code
    assert text in str(error.value)


def change(path, **values):
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_device_that_is_not_there_is_an_error(tmp_path):
    path = folder_of(tmp_path, nn.Linear(4, 4), torch.ones(1, 4))
    with pytest.raises(ExportError, match=r"one of CPU.*got 'TPU'.*\[export-device\]"):
        npu_compiler.load(path, device="TPU")


def test_model_that_openvino_cannot_read_is_an_error(tmp_path):
    path = folder_of(tmp_path, nn.Linear(4, 4), torch.ones(1, 4))
    (path / "model.xml").write_text("<net>")
    change(path, files={"model.xml": fingerprint(path / "model.xml")})
    with pytest.raises(ExportError, match=r"CPU must accept the model.*\[export-load\]"):
        npu_compiler.load(path, device="CPU")
    with pytest.raises(npu_runtime.ProgramError, match=r"\[program-load\]"):
        npu_compiler.load(path)


def test_decoder_of_transformers_is_exported_with_sizes_that_vary(tmp_path, close):
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (2, 6))
    arguments = {"input_ids": ids, "use_cache": False}
    path = folder_of(tmp_path, model, kwargs=arguments, dynamic={"input_ids": (0, 1)})
    loaded, arrays = npu_compiler.load(path), npu_compiler.load(path, device="CPU")
    for shape in [(2, 6), (1, 9)]:
        ids = torch.randint(0, 50, shape)
        with torch.no_grad():
            expected = model(ids, use_cache=False).logits
        close(loaded(ids)["logits"], expected, 1e-5)
        close(torch.from_numpy(arrays(ids.numpy())["logits"]), expected, 1e-5)


def test_tensor_for_a_device_of_choice_is_an_error(tmp_path):
    path = folder_of(tmp_path, nn.Linear(4, 4), torch.ones(1, 4))
    loaded = npu_compiler.load(path, device="CPU")
    with pytest.raises(ExportError, match="pass numpy arrays"):
        loaded(torch.ones(1, 4))


def test_folder_holds_no_pickle(tmp_path):
    path = folder_of(tmp_path, nn.Linear(4, 4), torch.ones(1, 4))
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "model.bin",
        "model.xml",
    ]
    assert openvino_core().read_model(path / "model.xml").inputs[0].get_shape() == [1, 4]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


def products_in(path) -> int:
    operations = openvino_core().read_model(path / "model.xml").get_ops()
    return [node.get_type_name() for node in operations].count("MatMul")


def test_passes_run_on_exported_graphs(tmp_path, close):
    model, x = Gated(), torch.randn(3, 64)
    path = folder_of(tmp_path, model, x, enabled_passes=["merge_linears"])
    close(npu_compiler.load(path)(x), model(x))
    assert products_in(path) == 1


def test_pass_that_is_not_asked_for_does_not_run(tmp_path):
    path = folder_of(tmp_path, Gated(), torch.ones(3, 64))
    assert products_in(path) == 2


def test_layers_that_are_compressed_are_not_merged(tmp_path):
    with pytest.raises(OptionError, match="merge_linears, which joins weights") as caught:
        folder_of(
            tmp_path, Gated(), torch.ones(3, 64), dtype="int8", enabled_passes=["merge_linears"]
        )
    assert caught.value.code == "option-conflict"


def test_layers_of_one_input_are_compressed_each(tmp_path):
    path = folder_of(tmp_path, Gated(), torch.ones(3, 64), dtype="int8")
    assert (path / "model.bin").stat().st_size < 2 * 64 * 64 * 1.2
