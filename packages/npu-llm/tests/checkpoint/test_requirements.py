from collections import namedtuple
from dataclasses import replace

import pytest

from npu_llm.checkpoint import requirements as memory
from npu_llm.checkpoint.facts import ModelFacts
from npu_llm.checkpoint.requirements import (
    available_bytes,
    cache_bytes_per_token,
    check_disk,
    check_memory,
    estimate,
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
        lambda precision: {"INFERENCE_PRECISION_HINT": hints[precision.compute]},
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


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path):
    put(tmp_path, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    return tmp_path


def test_available_memory_of_the_system(machine):
    assert available_bytes(machine) == 8000 * 1024


def test_available_memory_of_a_version_2_group_and_those_above(machine):
    put(machine, "proc/self/cgroup", "0::/user/job\n")
    put(machine, "sys/fs/cgroup/user/memory.max", "5000000\n")
    put(machine, "sys/fs/cgroup/user/memory.current", "4000000\n")
    put(machine, "sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 500000\n")
    put(machine, "sys/fs/cgroup/user/job/memory.max", "max\n")
    put(machine, "sys/fs/cgroup/user/job/memory.current", "1000\n")
    assert available_bytes(machine) == 1_500_000


def test_available_memory_of_a_version_1_group(machine):
    put(machine, "proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    # In a container the group's own files stand at the top.
    put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n")
    put(machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n")
    assert available_bytes(machine) == 2_000_000


def test_this_machine_has_memory():
    assert 0 < available_bytes() < 1 << 60
