"""Tutorials word by word, as `nox -s tutorials` does in a fresh environment: here, in the tests'.

docs/get-started/first-op.md builds a wheel, as tests/test_custom_op.py does; that session types it.
"""

import os
import sys
from pathlib import Path

import pytest

from pages.tutorials import Mismatch, Reader, bare_environment, compare, type_page


@pytest.fixture
def reader(tmp_path, cache):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Reader(tmp_path, {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(cache)}) as one:
        yield one


@pytest.mark.parametrize(
    "name", ["first-model.md", pytest.param("first-trace.md", marks=pytest.mark.long)]
)
def test_the_tutorial_does_what_it_says(root, reader, name):
    assert type_page((root / "docs/get-started" / name).read_text(), reader)


PAGE = """Save this as `say.py`:

```python
word = "hello"
```

Add:

```python
print(word, 1 / 3)
```

```bash
python3 say.py
```

```text
hello 0.…
```
"""


def test_a_page_that_holds_is_typed_and_compared(reader):
    assert type_page(PAGE, reader) == 1


@pytest.mark.parametrize(
    "former, planted, told",
    [
        ("hello 0.…", "goodbye 0.…", "the page shows 'goodbye 0.…'"),
        ("hello 0.…", "hello 0", "the page shows 'hello 0'"),
        ("1 / 3", "1 / 0", "exit code 1"),
        ("python3 say.py", "python3 sya.py\necho on", "exit code 2"),
    ],
)
def test_words_that_do_not_hold_are_noticed(reader, former, planted, told):
    with pytest.raises(Mismatch, match=told):
        type_page(PAGE.replace(former, planted), reader)


def test_the_shell_keeps_what_was_set_by_an_earlier_block(reader):
    reader.type("place=here")
    assert reader.type("echo $place").strip() == "here"


def test_lines_are_compared_in_their_order():
    assert compare("first\nlast", "first\nbetween\nlast\n") == 2
    with pytest.raises(Mismatch):
        compare("last\nfirst", "first\nlast\n")


def test_the_readers_python_is_the_one_that_runs_the_tool(tmp_path):
    major, minor = sys.version_info[:2]
    with Reader(tmp_path, bare_environment(tmp_path)) as one:
        said = one.type(f"python{major}.{minor} -c 'import sys; print(sys.version, sys.prefix)'")
    assert said.strip() == f"{sys.version} {sys.base_prefix}"
