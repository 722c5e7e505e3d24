"""Commands of the README and the pages, typed."""

import re

import pytest

PAGES = (
    "README.md",
    "docs/guides/check-for-an-npu.md",
    "docs/guides/choosing-a-precision.md",
    "docs/guides/compile.md",
    "docs/guides/dataloader-and-processes.md",
    "docs/guides/debugging-accuracy.md",
    "docs/guides/device.md",
    "docs/guides/dynamic-shapes.md",
    "docs/guides/export.md",
    "docs/guides/fused-operators.md",
    "docs/guides/graph-builder.md",
    "docs/guides/hugging-face.md",
    "docs/concepts/kernel-programs.md",
    "docs/guides/long-context.md",
    "docs/guides/memory.md",
    "docs/guides/mixed-precision.md",
    "docs/guides/moving-from-cuda.md",
    "docs/guides/moving-from-intel-npu-acceleration-library.md",
    "docs/concepts/nan.md",
    "docs/guides/numpy-operators.md",
    "docs/guides/profiling.md",
    "docs/guides/quantization.md",
    "docs/guides/reading-a-timeline.md",
    "docs/guides/saving-and-loading.md",
    "docs/guides/serving.md",
    "docs/guides/chat-sessions.md",
    "docs/guides/sparse-attention.md",
    "docs/guides/static-shapes.md",
    "docs/guides/streams.md",
    "docs/guides/structured-output.md",
    "docs/concepts/verification.md",
    "docs/concepts/fallback.md",
    "docs/reference/errors.md",
)
# Some 25 s each and more.
LONG = (
    "docs/guides/choosing-a-precision.md",
    "docs/guides/compile.md",
    "docs/guides/export.md",
    "docs/guides/long-context.md",
    "docs/guides/moving-from-intel-npu-acceleration-library.md",
    "docs/guides/chat-sessions.md",
    "docs/guides/sparse-attention.md",
    "docs/guides/static-shapes.md",
    "docs/guides/streams.md",
)
# The snippets, by number, that set a variable of ours before they import torch.
NEW = {("docs/guides/hugging-face.md", 0)}


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long if page in LONG else ()) for page in PAGES]
)
def test_python_on_the_page_runs(run, run_new, root, tmp_path, page):
    found = snippets((root / page).read_text())
    assert found
    for number, snippet in enumerate(found):
        script = tmp_path / f"snippet_{number}.py"
        script.write_text(snippet)
        start = run_new if (page, number) in NEW else run
        done = start("python", str(script))
        assert done.returncode == 0, done.stderr


def test_recipes_of_the_cookbook_run(run, root, tmp_path):
    recipes = snippets((root / "docs/cookbook.md").read_text())
    assert recipes
    # One process for all, and separate names for each: importing torch takes most of the time.
    script = tmp_path / "recipes.py"
    lines = [
        f"exec(compile({one!r}, 'recipe {n}', 'exec'), {{}})" for n, one in enumerate(recipes, 1)
    ]
    script.write_text("\n".join(lines))
    done = run("python", str(script))
    assert done.returncode == 0, done.stderr


def test_commands_on_the_pages_are_commands_of_the_wheels(root):
    from importlib.metadata import entry_points

    ours = {point.name for point in entry_points(group="console_scripts")}
    pages = [
        *PAGES,
        *(f"docs/{one}.md" for one in ("index", "get-started/first-answer", "guides/npu-on-linux")),
    ]
    text = "".join((root / page).read_text() for page in pages)
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"^(npu-[a-z]+)", lines, flags=re.MULTILINE))
    assert named
    assert named <= ours


def test_ci_calls_what_the_readme_calls_for(root):
    command = "python -m pip install nox && nox -s tests"
    assert command in (root / "README.md").read_text()
    assert command in (root / ".ci" / "run").read_text()
