from collections import namedtuple
from dataclasses import replace

import pytest

from npu_llm.checkpoint import requirements as memory
from npu_llm.checkpoint.facts import ModelFacts
from npu_llm.checkpoint.requirements import (
    cache_bytes_per_token,
    check_disk,
    check_memory,
    estimate,
    spare_bytes,
    weights_bytes,
)
from npu_llm.errors import CacheError, MemoryNeedError
from npu_llm.precision import PRECISIONS

# TinyLlama's sizes.
FACTS = ModelFacts(
    architecture="llama",
    parameters=1_100_048_384,
    matrix_parameters=1_034_420_224,
    table_parameters=65_536_000,
    layers=22,
    hidden_size=2048,
    heads=32,
    kv_heads=4,
    head_dim=64,
    vocabulary=32_000,
    context_length=2048,
    stored_bytes=2_200_096_768,
    is_tied=False,
    is_mapped=False,
)
GB = 1_000_000_000


@pytest.fixture
def available(monkeypatch):
    """available(bytes): as much memory is there."""

    def set_to(size):
        monkeypatch.setattr(memory, "available_bytes", lambda: size)

    return set_to


def test_weights_by_precision():
    sizes = {name: weights_bytes(FACTS, PRECISIONS[name]) for name in PRECISIONS}
    assert sizes["float32"] == 4 * FACTS.parameters
    assert sizes["bfloat16"] == sizes["float16"] == 2 * FACTS.parameters
    table = 4 * (FACTS.parameters - FACTS.matrix_parameters)
    assert sizes["int8"] == FACTS.matrix_parameters + table
    assert sizes["int4"] == pytest.approx(0.57 * FACTS.matrix_parameters + table, rel=0.001)


def test_cache_by_token_and_context(monkeypatch):
    hints = {"float32": "f32", "bfloat16": "bf16"}  # of a processor that has bfloat16
    monkeypatch.setattr(
        "npu_llm.precision.compile_options",
        lambda precision, device: {"INFERENCE_PRECISION_HINT": hints[precision.compute]},
    )
    per_token = cache_bytes_per_token(FACTS, PRECISIONS["bfloat16"])
    assert per_token == 2 * 22 * 4 * 64 * 2
    assert cache_bytes_per_token(FACTS, PRECISIONS["float32"]) == 2 * per_token
    # 64 bytes and a scale and a zero point, of keys and of values.
    assert cache_bytes_per_token(FACTS, PRECISIONS["int8"], "u8") == 2 * 22 * 4 * (64 + 8)
    small = estimate(FACTS, PRECISIONS["int8"], max_context=10, kv_cache="u8")
    assert small.cache_bytes == 10 * 2 * 22 * 4 * 72
    need = estimate(FACTS, PRECISIONS["int4"], max_context=2000)
    assert (need.context, need.cache_bytes) == (2000, 2000 * per_token)
    assert estimate(FACTS, PRECISIONS["int4"]).context == 1024


def test_refusal_has_the_figures_and_a_precision_that_fits(available):
    available(int(6.7 * GB))
    check_memory("tiny", FACTS, PRECISIONS["float32"], max_context=None, is_built=True)
    with pytest.raises(MemoryNeedError) as caught:
        check_memory("tiny", FACTS, PRECISIONS["float32"], max_context=None, is_built=False)
    text = str(caught.value)
    assert caught.value.code == "memory-need"
    assert "4.4 GB of weights in float32" in text
    assert "6.7 GB are available" in text
    assert 'dtype="int4"' in text


def test_weights_that_can_be_mapped_need_less_to_build():
    mapped = estimate(replace(FACTS, is_mapped=True), PRECISIONS["int4"])
    assert mapped.first_start_bytes < estimate(FACTS, PRECISIONS["int4"]).first_start_bytes - 3 * GB
    assert mapped.first_start_bytes > mapped.running_bytes


def test_kernel_programs_have_one_form_of_their_weights():
    mapped = replace(FACTS, is_mapped=True)
    for name in ("float32", "bfloat16", "int8", "int4"):
        need = estimate(mapped, PRECISIONS[name], kernels=True)
        other = estimate(mapped, PRECISIONS[name])
        assert need.building_bytes == 9 * FACTS.vocabulary * FACTS.hidden_size
        assert need.weights_bytes <= other.weights_bytes
        assert need.first_start_bytes < other.first_start_bytes
    # Of the float16 checkpoint, measured with the rest of the process's memory: 0.4.
    need = estimate(mapped, PRECISIONS["int4"], kernels=True)
    assert need.working_bytes + need.building_bytes < 1.3 * FACTS.stored_bytes
    unpacked = estimate(FACTS, PRECISIONS["int4"], kernels=True)
    assert unpacked.building_bytes == need.building_bytes + 4 * FACTS.parameters


def test_kernel_programs_keep_two_bytes_wherever_they_run(monkeypatch):
    monkeypatch.setattr(
        "npu_llm.precision.compile_options",
        lambda precision: {"INFERENCE_PRECISION_HINT": "f32"},  # as without bfloat16
    )
    sizes = {
        name: cache_bytes_per_token(FACTS, PRECISIONS[name], kernels=True)
        for name in ("float32", "bfloat16", "int4")
    }
    of_heads = 2 * 22 * 4 * 64
    assert sizes == {"float32": 4 * of_heads, "bfloat16": 2 * of_heads, "int4": 2 * of_heads}


def test_a_precision_that_fits_as_a_kernel_program_is_named(available):
    facts = replace(FACTS, is_mapped=True)
    available(int(2.3 * GB))
    check = {"max_context": None, "is_built": False}
    check_memory("tiny", facts, PRECISIONS["int8"], **check, kernels=True)
    with pytest.raises(MemoryNeedError, match="to build the program once"):
        check_memory("tiny", facts, PRECISIONS["int8"], **check)
    with pytest.raises(MemoryNeedError, match='dtype="int8"') as caught:
        check_memory("tiny", facts, PRECISIONS["bfloat16"], **check, kernels=True)
    assert "2.2 GB of weights in bfloat16" in str(caught.value)


def test_memory_for_keys_and_values_is_what_weights_and_a_step_leave(available):
    available(3 * GB)
    assert spare_bytes(GB) == 2 * GB - 100_000_000


def test_refusal_names_a_context_that_fits(available):
    need = estimate(FACTS, PRECISIONS["int4"], max_context=1000)
    available(need.running_bytes)
    check_memory("tiny", FACTS, PRECISIONS["int4"], max_context=1000, is_built=True)
    with pytest.raises(MemoryNeedError, match="max_context=1000 or less"):
        check_memory("tiny", FACTS, PRECISIONS["int4"], max_context=2000, is_built=True)


def test_refusal_where_nothing_fits(available):
    available(GB // 2)
    with pytest.raises(MemoryNeedError, match="smaller model"):
        check_memory("tiny", FACTS, PRECISIONS["int8"], max_context=None, is_built=True)


def test_disk_without_room(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda _: usage(GB, GB // 2, GB // 2))
    with pytest.raises(CacheError) as caught:
        check_disk("tiny", FACTS, PRECISIONS["int4"], tmp_path / "not" / "there")
    assert caught.value.code == "disk-need"
    assert "0.50 GB are free" in str(caught.value)
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda _: usage(GB, 0, GB))
    check_disk("tiny", FACTS, PRECISIONS["int4"], tmp_path)
    with pytest.raises(CacheError):  # weights and a copy, before the header is known
        check_disk("tiny", FACTS, PRECISIONS["int4"], tmp_path, kernels=True)
