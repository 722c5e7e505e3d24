import pytest

from npu_profiler.errors import TraceError
from npu_profiler.roofline import peaks as module
from npu_profiler.roofline.peaks import find_peaks


@pytest.fixture
def small_probes(monkeypatch, tmp_path):
    """The probes' own way through the device, with sizes that take milliseconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_PRODUCT_SIZE", 64)
    monkeypatch.setattr(module, "_ROW_SIZE", 256)
    monkeypatch.setattr(module, "_RELU_SIZE", 4096)
    monkeypatch.setattr(module, "_PROBE_S", 0.0)
    monkeypatch.setattr(module, "_QUIET_SHARE", 0.0)


def test_peaks_are_measured_once_and_only_what_is_missing(small_probes):
    said = []
    first = find_peaks(["f32"], say=said.append)
    assert first.bytes_per_s > 1e6
    assert first.flops_per_s["f32"] > 1e6
    assert len(said) == 2
    second = find_peaks(["f32", "bf16", "i8"], say=said.append)
    assert second.bytes_per_s == first.bytes_per_s
    assert second.flops_per_s["f32"] == first.flops_per_s["f32"]
    assert set(second.flops_per_s) == {"f32", "bf16"}
    assert len(said) == 3


def test_measuring_afresh_replaces_what_was_kept(small_probes):
    find_peaks(["f32"])
    said = []
    find_peaks(["f32"], is_fresh=True, say=said.append)
    assert len(said) == 2


def test_peaks_of_a_busy_machine_are_not_kept(small_probes, monkeypatch):
    monkeypatch.setattr(module, "_QUIET_SHARE", 1000.0)
    said = []
    find_peaks(["f32"], say=said.append)
    assert "too low" in said[-1]
    assert not (module.read_cache_dir() / "peaks.json").exists()


def test_a_device_that_is_not_there_is_an_error_with_the_way_out(small_probes):
    with pytest.raises(TraceError, match="--bandwidth and --peak") as raised:
        find_peaks(["f32"], device_index=7)
    assert raised.value.code == "roofline-device"
