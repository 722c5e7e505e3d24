"""Problems that prevent a release, in trees for this test; and the ends of ranges."""

import dataclasses
import subprocess
import sys

import pytest

import declared
import release

CHANGELOG = "# Changelog of npu-ops\n\n## {version}{remark}\n\n- A line.\n\n## 0.0.9\n\n- Former.\n"


@pytest.fixture
def packages(tmp_path):
    """npu-ops 0.2.0 on npu-runtime 0.1.0, ready for a release."""
    for name, version, needs in (
        ("npu-runtime", "0.1.0", '"openvino>=2026.4,<2027"'),
        ("npu-ops", "0.2.0", '"npu-runtime>=0.1,<0.3", "numpy>=1.26", "openvino<2026.5,>=2026.3"'),
    ):
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "CHANGELOG.md").write_text(CHANGELOG.format(version=version, remark=""))
        (folder / "pyproject.toml").write_text(
            f'[build-system]\nrequires = []\n[project]\nname = "{name}"\nversion = "{version}"\n'
            f"dependencies = [{needs}]\n[project.urls]\n"
            'Homepage = "https://code.of-this-project.org"\n'
        )
    return declared.read_packages(tmp_path)


def problems(packages, *, tags=(), there=()):
    return release.find_problems(packages, tags, lambda name: there)["npu-ops"]


def changed(packages, **fields):
    """The packages, with other fields in the [project] table of npu-ops."""
    package = packages["npu-ops"]
    project = package.project | fields
    return packages | {"npu-ops": dataclasses.replace(package, project=project)}


def test_packages_that_are_ready_have_no_problems(packages):
    assert release.find_problems(packages, [], lambda name: []) == {
        "npu-ops": [],
        "npu-runtime": [],
    }


def test_name_whose_versions_we_tagged_is_ours(packages):
    assert problems(packages, tags=["npu-ops-v0.1.0"], there=["0.1.0"]) == []


def test_name_with_a_version_that_has_no_tag_is_a_strangers(packages):
    (found,) = problems(packages, tags=["npu-ops-v0.1.0"], there=["0.1.0", "1.0", "1.5.8"])
    assert "npu-ops is a stranger's" in found
    assert "2 versions from 1.0 to 1.5.8" in found


@pytest.mark.parametrize("remark", [" (unreleased)", " - unreleased"])
def test_changelog_that_calls_the_version_unreleased(packages, remark):
    text = CHANGELOG.format(version="0.2.0", remark=remark)
    (packages["npu-ops"].folder / "CHANGELOG.md").write_text(text)
    assert problems(packages) == ["CHANGELOG.md still calls 0.2.0 unreleased"]


def test_changelog_of_another_version(packages):
    assert problems(changed(packages, version="0.2.1")) == [
        "CHANGELOG.md must begin with 0.2.1, got 0.2.0"
    ]


def test_changelog_without_a_line_for_the_version(packages):
    (packages["npu-ops"].folder / "CHANGELOG.md").write_text("## 0.2.0\n\n## 0.1.0\n\n- Former.\n")
    assert problems(packages) == ["CHANGELOG.md must describe 0.2.0, got an empty section"]


def test_version_below_one_that_was_released(packages):
    assert problems(packages, tags=["npu-ops-v0.3.0"]) == [
        "version 0.2.0 must not be below the released 0.3.0"
    ]


@pytest.mark.parametrize(
    "need, problem",
    [
        ("npu-runtime>=0.2,<0.3", "must allow the tree's npu-runtime 0.1.0"),
        ("npu-runtime>=0.1,<0.1.0", "must allow the tree's npu-runtime 0.1.0"),
        ("npu-runtime>=0.0.5,<0.3", "must begin at a released version"),
        ("npu-runtime==0.1.0", "must be a range: >= and <"),
    ],
)
def test_range_of_a_sibling(packages, need, problem):
    found = problems(changed(packages, dependencies=[need]))
    assert any(problem in line for line in found), found


def test_range_may_begin_at_a_version_that_was_released(packages):
    older = changed(packages, dependencies=["npu-runtime>=0.0.5,<0.3"])
    assert problems(older, tags=["npu-runtime-v0.0.5"]) == []


@pytest.mark.parametrize(
    "url, is_reserved",
    [
        ("https://npu-platform.example/docs", True),
        ("https://example.org/npu", True),
        ("https://www.example.com", True),
        ("https://notexample.com", False),
        ("https://an-example.net/npu", False),
    ],
)
def test_address_that_nobody_can_own(packages, url, is_reserved):
    found = problems(changed(packages, urls={"Homepage": url}))
    assert [("reserved" in line) for line in found] == [True] * is_reserved


def test_tags_are_those_of_versions_without_one(packages):
    assert release.tags_to_make(packages, ["npu-runtime-v0.1.0"]) == ["npu-ops-v0.2.0"]


def test_name_without_versions_is_free_only_where_pip_finds_an_index(monkeypatch):
    asked = {"pip": '{"versions": ["26.3"]}'}

    def pip(command, **options):
        answer = asked.get(command[-1])
        said = "" if answer else "ERROR: No matching distribution found for it"
        return subprocess.CompletedProcess(command, 0 if answer else 1, answer, said)

    monkeypatch.setattr(subprocess, "run", pip)
    assert release.versions_on_index("npu-ops") == []
    asked.clear()
    with pytest.raises(release.IndexUnreachable, match=r"npu-ops: .* pip finds no index"):
        release.versions_on_index("npu-ops")


def test_pip_that_fails_in_another_way_is_no_free_name(monkeypatch):
    failed = subprocess.CompletedProcess([], 2, "", "no such option: --json")
    monkeypatch.setattr(subprocess, "run", lambda *_, **options: failed)
    with pytest.raises(release.IndexUnreachable, match="no such option"):
        release.versions_on_index("npu-ops")


def test_lowest_end_pins_the_floor_of_the_narrowest_range(packages):
    assert declared.pins(packages, "npu-ops", "lowest") == ["numpy==1.26", "openvino==2026.4"]


def test_highest_end_keeps_the_ranges_of_all_that_is_needed(packages):
    numpy, openvino = declared.pins(packages, "npu-ops", "highest")
    assert numpy == "numpy>=1.26"
    assert set(openvino.removeprefix("openvino").split(",")) == {
        *(">=2026.3", ">=2026.4", "<2026.5", "<2027")
    }


def test_lowest_end_pins_a_sibling_whose_floor_is_not_the_trees(packages):
    lowered = changed(packages, dependencies=["npu-runtime>=0.0,<0.3"])
    assert "npu-runtime==0.0.0" in declared.pins(lowered, "npu-ops", "lowest")
    assert all("npu-runtime" not in pin for pin in declared.pins(lowered, "npu-ops", "highest"))


def test_range_without_a_floor_has_no_lowest_end(packages):
    with pytest.raises(ValueError, match=r"npu-ops: numpy must have a lower end, got numpy<3"):
        declared.pins(changed(packages, dependencies=["numpy<3"]), "npu-ops", "lowest")


@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_each_package_has_both_ends(root, end):
    packages = declared.read_packages(root)
    for name in packages:
        assert any(pin.startswith("openvino") for pin in declared.pins(packages, name, end))


def test_command_prints_the_pins(root):
    command = [sys.executable, "tools/declared.py", "lowest", "npu-llm"]
    printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert printed.split() == declared.pins(declared.read_packages(root), "npu-llm", "lowest")
