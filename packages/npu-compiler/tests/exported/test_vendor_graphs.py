"""Exported folders with blobs of another vendor's compiler, a fake one, and its checks."""

from __future__ import annotations

import pytest
import torch

from npu_compiler import export, load
from npu_compiler.errors import ExportError
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.readiness import check


@pytest.fixture
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).eval()


def test_a_folder_has_the_blob_and_its_page(fake_vendor, net, tmp_path):
    fake_vendor.folder = tmp_path
    x = torch.randn(2, 8)
    folder = export(net, (x,), tmp_path / "net", targets=["fake-1", "f1"])
    (record,) = read_manifest(folder).blobs
    assert (record.target, record.compiler) == ("f1", "fake 1.0")
    assert (folder / record.file).read_bytes() == b"fake"
    page = (folder / "blobs/f1/README.md").read_text()
    assert page == "run blobs/f1/model.fake on Fake One with [(2, 8)]\n"
    assert torch.allclose(torch.as_tensor(load(folder)(x)), net(x), atol=1e-4)


@pytest.mark.parametrize("kind", ["known", "refused"])
def test_a_refusal_leaves_nothing_unless_it_is_skipped(fake_vendor, net, tmp_path, kind):
    setattr(fake_vendor, kind, {"aten.tanh.default": "no tanh here"})
    with pytest.raises(ExportError, match="no tanh here") as error:
        export(net, (torch.randn(2, 8),), tmp_path / "net", targets=["f1"])
    assert error.value.code == "target-refused"
    assert list(tmp_path.iterdir()) == []
    folder = export(net, (torch.randn(2, 8),), tmp_path / "net", targets=["f1"], skip_refused=True)
    (record,) = read_manifest(folder).blobs
    assert "no tanh here" in record.refused
    assert record.file == ""


def test_check_has_the_compilers_verdict_and_each_refused_call(fake_vendor, net):
    x = (torch.randn(2, 8),)
    assert check(net, x, target="fake-1").verdict == "accepted by the compiler of NPU f1 (Fake One)"
    fake_vendor.refused = {"aten.tanh.default": "cannot place Tanh"}
    found = check(net, x, target="fake-1")
    assert (found.is_ready, found.findings[0].detail) == (False, "cannot place Tanh")
    fake_vendor.known = {"aten.tanh.default": "no tanh on this chip"}
    found = check(net, x, target="fake-1")
    assert not found.is_ready
    assert "aten.tanh.default" in found.findings[0].detail
