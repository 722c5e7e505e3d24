"""npu_command is independent: its modules do not import torch, or one of our packages."""

import json
from pathlib import Path

import npu_command


def test_no_module_of_it_imports_torch_or_ours(run_python):
    names = [path.stem for path in Path(npu_command.__file__).parent.glob("[!_]*.py")]
    assert names
    done = run_python(
        "import importlib, json, sys\n"
        f"for name in {sorted(names)!r}:\n"
        "    importlib.import_module(f'npu_command.{name}')\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n",
        is_real=True,
    )
    loaded = json.loads(done.stdout)
    ours = [name for name in loaded if name.startswith("npu_") and name != "npu_command"]
    assert "torch" not in loaded
    assert ours == []
