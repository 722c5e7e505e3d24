"""A file switches a running job's recording on for n steps."""

import gzip
import json
import re

import pytest

from npu_profiler import dynamic_profile
from npu_profiler.errors import TraceError

# Each line that the test sends is a step; before it the file may have been saved.
JOB = """
import json, os, pathlib, warnings
import torch
from npu_profiler import dynamic_profile
assert "NPU_ATTACH" not in os.environ
dynamic_profile.init("prof")
path = pathlib.Path("prof/profiler_config.json")
def save(**values):
    path.write_text(json.dumps(values))
    os.utime(path, ns=(save.ns, save.ns))
    save.ns += 1
save.ns = 10**18
def steps(count):
    for _ in range(count):
        torch.ones(2).sin()
        dynamic_profile.step()
"""


@pytest.fixture
def run(run_lines):
    return lambda body: run_lines(JOB + body)


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_saved_file_records_as_many_steps_as_it_says(run, tmp_path, check_schema):
    run("""
steps(5)
save(active=2)
steps(6)
save(active=1, with_modules=True)
steps(2)
""")
    traces = {path.name: read(path) for path in (tmp_path / "prof").glob("*.json.gz")}
    steps_of = {}
    for name, document in traces.items():
        check_schema(document)
        names = [event["name"] for event in document["traceEvents"]]
        found = sorted(name for name in names if name.startswith("ProfilerStep#"))
        steps_of[re.sub(r"-\d+-", "-", name, count=1)] = found
        assert names.count("aten::sin") == len(found)
    assert steps_of == {
        "process-step-6.json.gz": ["ProfilerStep#6", "ProfilerStep#7"],
        "process-step-12.json.gz": ["ProfilerStep#12"],
    }


def test_recording_waits_for_its_step_and_goes_to_its_directory(run, tmp_path):
    run("""
save(active=1, start_step=4, prof_dir="deep/er")
steps(7)
""")
    (path,) = (tmp_path / "prof/deep/er").iterdir()
    assert path.name.endswith("-step-4.json.gz")


def test_template_has_all_keys_and_does_not_record(run, tmp_path):
    run("steps(3)")
    (path,) = (tmp_path / "prof").iterdir()
    assert dynamic_profile.read_config(path) == dynamic_profile.ProfilerConfig()


def test_wrong_file_is_a_warning_and_the_job_goes_on(run, tmp_path):
    (line,) = run(r"""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    save(actives=2)
    steps(3)
    for place in ("a\0b", "profiler_config.json/a"):
        save(prof_dir=place)
        steps(1)
print(*[one.message for one in caught])
save(active=1)
steps(2)
""")
    assert "got actives." in line
    assert line.count("[dynamic-profile]") == 3
    assert len(list((tmp_path / "prof").glob("*.json.gz"))) == 1


def test_file_that_is_being_written_is_read_when_it_is_whole(run, tmp_path):
    run("""
warnings.simplefilter("error")
path.write_text('{"active"')
os.utime(path, (2e9, 2e9))  # still being written for a long time
steps(2)
path.write_text('{"active": 1}')
steps(2)
""")
    assert len(list((tmp_path / "prof").glob("*.json.gz"))) == 1


def test_recording_is_written_at_the_end_of_the_job(run, tmp_path):
    run("""
dynamic_profile.start()
dynamic_profile.start()
torch.ones(2).cos()
""")
    (path,) = (tmp_path / "prof").glob("*.json.gz")
    assert "aten::cos" in [event["name"] for event in read(path)["traceEvents"]]


def test_another_recording_is_a_warning(run):
    (line,) = run("""
import npu_profiler
with warnings.catch_warnings(record=True) as caught, npu_profiler.trace("other.json"):
    warnings.simplefilter("always")
    save(active=1)
    steps(3)
print(*[one.message for one in caught])
""")
    assert line.count("[trace-active]") == 1


@pytest.mark.parametrize(
    "text, quoted",
    [
        ("{", "must contain JSON"),
        ("[1]", "got list"),
        ('{"active": 0}', "got 0"),
        ('{"active": true}', "got True"),
        ('{"start_step": -1}', "got -1"),
        ('{"with_stack": "yes"}', "got 'yes'"),
    ],
)
def test_file_that_is_no_configuration_is_refused(tmp_path, text, quoted):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"\[dynamic-profile\]") as caught:
        dynamic_profile.read_config(path)
    assert caught.value.code == "dynamic-profile"
    assert quoted in str(caught.value)


def test_steps_without_a_directory_are_refused():
    for call in (dynamic_profile.step, dynamic_profile.start):
        with pytest.raises(TraceError, match=r"init\(directory\).*\[dynamic-profile\]"):
            call()


def test_directory_is_made_once(run, tmp_path):
    (tmp_path / "file").touch()
    lines = run("""
import npu_profiler
dynamic_profile.init("prof")
for path in ("other", "file"):
    dynamic_profile._watch = dynamic_profile._watch if path == "other" else None
    try:
        dynamic_profile.init(path)
    except npu_profiler.TraceError as error:
        print(error.code)
""")
    assert lines == ["dynamic-profile", "output-unwritable"]
    assert [path.name for path in (tmp_path / "prof").iterdir()] == ["profiler_config.json"]
