from dataclasses import replace

import pytest
import torch

from npu_llm.bench import EnergyMeter, benchmark, find_meter, plot_records
from npu_llm.engine.engine import Engine
from npu_llm.errors import OptionError

NO_METER = EnergyMeter("", reason="none here")


@pytest.fixture(scope="module")
def records(llama):
    torch.manual_seed(3)
    return benchmark(
        llama.ours(), prompt_lengths=[3, 20], new_tokens=[1, 5], batch_sizes=[1, 2], repeats=1,
        warm_up=0, meter=NO_METER,
    )  # fmt: skip


def test_each_combination_of_sizes_is_measured_once(records):
    sizes = [(record.batch_size, record.new_tokens, record.prompt_tokens) for record in records]
    assert sizes == [(b, n, p) for b in (1, 2) for n in (1, 5) for p in (3, 20)]


def test_figures_belong_together(records):
    for record in records:
        tokens = record.batch_size * record.prompt_tokens
        assert record.prefill_tokens_per_s == pytest.approx(tokens / record.first_token_s)
        assert (record.decode_tokens_per_s is None) == (record.new_tokens == 1)
        assert 0 < record.anonymous_memory_bytes < record.peak_memory_bytes
        assert record.power_w is None


def test_warm_up_and_repeats_are_answers_and_the_listener_hears_each_size(llama, monkeypatch):
    calls = []
    model = llama.ours()
    submit = Engine.submit
    monkeypatch.setattr(Engine, "submit", lambda *given: calls.append(given) or submit(*given))
    heard, answered = [], []
    found = benchmark(
        model, prompt_lengths=[4, 5], new_tokens=[2], repeats=3, warm_up=2, meter=NO_METER,
        on_record=heard.append, on_answer=lambda done, total: answered.append((done, total)),
    )  # fmt: skip
    assert len(calls) == 10
    assert heard == found
    assert answered == [(done, 10) for done in range(11)]


def test_energy_becomes_power(llama, tmp_path):
    counter = tmp_path / "energy_uj"
    counter.write_text("5000000")
    meter = EnergyMeter("package-0", (counter,), 10.0)
    assert meter.read_joules() == 5.0
    counter.write_text("8000000")
    assert meter.mean_watts(5.0, 2.0) == pytest.approx(1.5)
    found = benchmark(
        llama.ours(), prompt_lengths=[3], new_tokens=[2], repeats=1, warm_up=0, meter=meter
    )
    assert found[0].power_w == 0.0


@pytest.mark.parametrize(
    "changes, quoted",
    [
        ({"prompt_lengths": [0]}, "prompt 0"),
        ({"repeats": 0}, "repeats 0"),
        ({"prompt_lengths": [100], "new_tokens": [100]}, "128"),
    ],
)
def test_sizes_that_cannot_be_measured_are_errors(llama, changes, quoted):
    with pytest.raises(OptionError) as caught:
        benchmark(llama.ours(), **changes)
    assert caught.value.code == "bench-size"
    assert quoted in str(caught.value)


def test_plot_names_every_size(records):
    drawn = plot_records([replace(record, power_w=1.0) for record in records], title="a <model>")
    assert drawn.startswith("<svg")
    assert drawn.endswith("</svg>\n")
    assert "a &lt;model&gt;" in drawn
    for record in records:
        label = (
            f"{record.prompt_tokens:,} + {record.new_tokens:,} tokens, batch {record.batch_size}"
        )
        assert drawn.count(f">{label}</text>") == 1 + (record.new_tokens > 1)


def make(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_packages_of_the_processor_are_counted_together_and_cores_are_not(tmp_path):
    for number in (0, 1):
        zone = tmp_path / "cap" / f"intel-rapl:{number}"
        make(zone, name=f"package-{number}", energy_uj=1_500_000, max_energy_range_uj=4_000_000)
        make(tmp_path / "cap" / f"intel-rapl:{number}:0", name="core", energy_uj=9)
    meter = find_meter(powercap=tmp_path / "cap", hwmon=tmp_path / "none")
    assert meter.name == "package-0 and package-1"
    assert meter.read_joules() == 3.0
    assert meter.wrap_joules == 8.0


def test_counter_that_wrapped_still_gives_power(tmp_path):
    zone = tmp_path / "cap" / "intel-rapl:0"
    make(zone, name="package-0", energy_uj=1_000_000, max_energy_range_uj=10_000_000)
    meter = find_meter(powercap=tmp_path / "cap", hwmon=tmp_path / "none")
    assert meter.mean_watts(9.0, 2.0) == 1.0


def test_an_npu_that_counts_its_energy_comes_first(tmp_path):
    make(tmp_path / "cap" / "intel-rapl:0", name="package-0", energy_uj=7)
    make(tmp_path / "mon" / "hwmon0", name="coretemp", energy1_input=5)
    make(tmp_path / "mon" / "hwmon1", name="intel_vpu", energy1_input=2_000_000)
    meter = find_meter(powercap=tmp_path / "cap", hwmon=tmp_path / "mon")
    assert (meter.name, meter.read_joules()) == ("NPU", 2.0)


def test_nothing_to_read_says_why(tmp_path):
    meter = find_meter(powercap=tmp_path, hwmon=tmp_path)
    assert not meter.is_readable
    assert str(tmp_path) in meter.reason
    assert meter.read_joules() is None
    assert meter.mean_watts(None, 1.0) is None


def test_counter_that_may_not_be_read_says_so(tmp_path):
    zone = tmp_path / "cap" / "intel-rapl:0"
    make(zone, name="package-0")
    (zone / "energy_uj").mkdir()  # cannot be read, by root neither
    meter = find_meter(powercap=tmp_path / "cap", hwmon=tmp_path / "none")
    assert not meter.is_readable
    assert "root" in meter.reason
