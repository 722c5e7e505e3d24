"""The reference pages against the sources: no code and no variable may lack its row."""

import ast
import re
from pathlib import Path

import pytest

CODE = r"[a-z0-9]+(?:-[a-z0-9]+)+"


def sources(root: Path, *endings: str) -> list[Path]:
    files = [
        file
        for folder in ("src", "csrc", "include")
        for file in root.glob(f"packages/*/{folder}/**/*")
    ]
    return sorted(file for file in files if file.suffix in endings)


def codes_in_python(file: Path) -> set[str]:
    """Codes handed to an exception: `SomethingError("...", "the-code")`, `code="the-code"`."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            texts = [item.value for item in node.keywords if item.arg == "code"]
            if name.endswith("Error"):
                texts += node.args[1:]
            found |= {
                item.value
                for item in texts
                if isinstance(item, ast.Constant)
                and isinstance(item.value, str)
                and re.fullmatch(CODE, item.value)
            }
    return found | set(re.findall(rf"\[({CODE})\]\"", file.read_text()))


def codes_in_native(file: Path) -> set[str]:
    """Codes in `Error(ErrorKind::kX, "the-code", ...)` and at the end of a message."""
    text = file.read_text()
    written = re.findall(rf"ErrorKind::\w+\s*,\s*\"({CODE})\"", text)
    return set(written) | set(re.findall(rf"\[({CODE})\]\"", text))


@pytest.fixture(scope="module")
def used(root: Path) -> set[str]:
    python = [codes_in_python(file) for file in sources(root, ".py")]
    native = [codes_in_native(file) for file in sources(root, ".cpp", ".h")]
    return set().union(*python, *native)


@pytest.fixture(scope="module")
def listed(root: Path) -> list[str]:
    pages = [page.read_text() for page in (root / "docs/reference/errors").glob("*.md")]
    # The anchor is the code, so that `errors/device.md#device-absent` links it.
    pattern = rf"^## `({CODE})` {{ #\1 }}$"
    return [code for page in pages for code in re.findall(pattern, page, flags=re.MULTILINE)]


def test_every_code_that_the_sources_use_is_explained(used, listed):
    assert used - set(listed) == set()


def test_no_code_is_explained_that_nothing_uses(used, listed):
    assert set(listed) - used == set()


def test_codes_stand_once(listed):
    assert len(listed) == len(set(listed))


def test_every_environment_variable_is_explained(root):
    page = (root / "docs" / "reference" / "environment.md").read_text()
    read = set()
    for file in sources(root, ".py", ".cpp", ".h"):
        text = file.read_text()
        read |= set(re.findall(r"(?:environ|getenv)\W[^\n]*?\"([A-Z][A-Z0-9_]+)\"", text))
        if file.name == "config.py":
            read |= set(re.findall(r"\"(NPU_[A-Z0-9_]+)\"", text))
    assert {name for name in read if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", ["compiler", "llm", "ops", "profiler", "runtime"])
def test_errors_stand_last_on_the_page_of_a_wheel(root, name):
    page = (root / "docs" / "reference" / f"npu-{name}.md").read_text()
    blocks = re.findall(r"^::: ([\w.]+)$(.*?)(?=^:::|\Z)", page, re.MULTILINE | re.DOTALL)
    assert "!Error$" in dict(blocks)[f"npu_{name}"]
    assert blocks[-1][0] == f"npu_{name}.errors"


def test_the_tolerances_of_programs_are_on_their_page(root):
    from npu_ops.tolerances import DEFAULT, NAMED

    page = (root / "docs/concepts/fallback.md").read_text()
    for tolerance in {DEFAULT, *NAMED.values()}:
        shares = (tolerance.float32, tolerance.bfloat16, tolerance.float16)
        shown = [f"{share:.2g}".replace("e-0", "e-") if share else "equal" for share in shares]
        assert f"| {' | '.join(shown)} |" in page


def test_every_pass_has_its_row(root):
    from npu_compiler.passes.pipeline import pass_names

    page = (root / "docs/concepts/compiler.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \|", page, re.M)
    assert tuple(rows) == pass_names()


# Their condition needs a second accelerator of another kind, or torch checks it before it calls the
# device (torch 2.13).
OUT_OF_REACH = {"copy-device", "event-time"}


def test_every_code_is_named_by_a_test(root, used):
    files = [*root.glob("packages/*/tests/**/*.py"), *root.glob("tests/**/*.py")]
    text = "\n".join(file.read_text() for file in files if file != Path(__file__))
    named = set(re.findall(rf"(?<![\w-])({CODE})(?![\w-])", text))
    assert used - named == OUT_OF_REACH
