from npu_llm.bench.power import find_meter


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
