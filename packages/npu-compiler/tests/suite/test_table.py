"""The table of architectures, and queries of it."""

from __future__ import annotations

import sys
import types
from collections import Counter

import pytest
import torch

from npu_compiler.errors import SuiteError
from npu_compiler.suite import ARCHITECTURES, FAMILIES, Architecture, find, make, select
from npu_compiler.suite.families import timm_models
from npu_compiler.suite.families.architecture import coinciding, from_config
from npu_compiler.suite.measurement import tensors_of


def test_there_are_architectures_of_every_kind():
    counted = Counter(row.family for row in ARCHITECTURES)
    assert len(ARCHITECTURES) >= 150
    assert set(counted) == set(FAMILIES)
    assert min(counted.values()) >= 4
    assert sum(counted.values()) - counted["multimodal"] >= 89


def test_names_stand_once():
    names = [row.name for row in ARCHITECTURES + timm_models.ARCHITECTURES]
    assert len(names) == len(set(names))


def test_unknown_name_lists_those_that_are_spelt_alike():
    with pytest.raises(SuiteError, match=r"'llam'.*llama") as error:
        find("llam")
    assert error.value.code == "suite-name"


def test_unknown_family_is_an_error():
    with pytest.raises(SuiteError, match=r"'visions'.*vision") as error:
        select(family="visions")
    assert error.value.code == "suite-name"


def test_names_and_a_family_are_both_asked_for():
    assert [row.name for row in select(["vit", "bert"], "encoder")] == ["bert"]


def test_a_missing_transformers_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SuiteError, match=r"transformers>=5.20") as error:
        make(find("bert"))
    assert error.value.code == "suite-transformers"


def test_a_class_that_transformers_lacks_is_told_with_its_version():
    with pytest.raises(SuiteError, match="NoSuchModel") as error:
        from_config("NoSuchModel", "BertConfig")()
    assert error.value.code == "suite-transformers"


def test_timm_is_measured_on_request_alone():
    chosen = select(is_timm=True)
    assert len(chosen) >= 40
    assert {row.family for row in chosen} == {timm_models.FAMILY}
    assert not set(chosen) & set(select())
    assert find("regnetx_002") in chosen


def test_a_missing_timm_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SuiteError, match="pip install timm") as error:
        make(find("regnetx_002"))
    assert error.value.code == "suite-timm"


def test_timm_is_imported_beside_a_torchvision_without_ops(monkeypatch):
    library, imported = types.ModuleType("timm"), []

    def import_module(name):
        imported.append(name)
        if not hasattr(torch.ops.torchvision, "qnms"):
            raise RuntimeError("operator torchvision::nms does not exist")
        return library

    monkeypatch.setattr(timm_models.importlib, "import_module", import_module)
    monkeypatch.setattr(timm_models, "_declared", declared := [])
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("half of it"))
    assert timm_models._timm() is library
    assert imported == ["timm", "timm"]
    assert "torchvision" not in sys.modules
    assert [row.ns for row in declared] == ["torchvision"]
    declared.pop()._destroy()


def test_an_import_that_fails_otherwise_is_not_tried_again(monkeypatch):
    def import_module(name):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(timm_models.importlib, "import_module", import_module)
    with pytest.raises(RuntimeError, match="out of memory"):
        timm_models._timm()


@pytest.mark.parametrize("name, heads", [("bert", 8), ("llama", 8), ("qwen3", 8), ("m2m_100", 8)])
def test_a_draw_sets_the_heads_of_an_attention(name, heads):
    config = make(find(name), sizes=coinciding(1))[0].config
    assert config.num_attention_heads == heads
    assert getattr(config, "head_dim", 8) == 8


def test_one_seed_gives_one_model():
    first, inputs = make(find("opt"), seed=3)
    second, again = make(find("opt"), seed=3)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert all(torch.equal(inputs[key], again[key]) for key in inputs)


def test_no_parameter_is_left_as_a_constant():
    model, _ = make(find("bert"))
    assert all(float(p.detach().std()) > 0 for p in model.parameters() if p.numel() > 1)


def test_a_scale_that_is_constant_but_for_rounding_gets_noise():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma = torch.nn.Parameter(torch.full((48, 1, 1), 1e-5))

    spread = Scaled().gamma.detach().std()
    assert 0 < float(spread) < 1e-10
    model, _ = make(Architecture("net", "vision", Scaled, dict))
    assert 0.05 < float(model.gamma.detach().std()) < 0.2


@pytest.mark.parametrize("name", ["mobilevit", "bert", "resnet"])
def test_results_depend_on_the_inputs(name):
    row = find(name)
    model, inputs = make(row)
    with torch.no_grad():
        first = tensors_of(model(**inputs))[0]
        other = tensors_of(model(**row.inputs()))[0]
    assert float((first - other).abs().max()) > 1e-2 * float(first.abs().max())
