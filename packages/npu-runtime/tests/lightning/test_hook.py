"""The wait for Lightning, with small packages of its names."""

import pytest

REGISTRY = """
class Registry(dict):
    def register(self, name, accelerator, description):
        self[name] = accelerator

class Accelerator: pass
{name} = Registry()
"""


@pytest.fixture
def lightning(tmp_path, run_python):
    """Writes a distribution's two halves, and runs code that finds them first."""

    def run(fabric, pytorch, code, *, is_real=False):
        for half, name in ((fabric, "ACCELERATOR_REGISTRY"), (pytorch, "AcceleratorRegistry")):
            path = tmp_path / half.replace(".", "/") / "accelerators.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(REGISTRY.format(name=name))
            for package in path.relative_to(tmp_path).parents[:-1]:
                (tmp_path / package / "__init__.py").touch()
        done = run_python(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}", is_real=is_real
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return run


@pytest.mark.parametrize("first", ["torch", "lightning.fabric"])
def test_both_registries_know_npu_whichever_is_imported_first(lightning, first):
    printed = lightning(
        "lightning.fabric",
        "lightning.pytorch",
        f"import {first}, torch, lightning.fabric.accelerators, lightning.pytorch.accelerators\n"
        "print(*lightning.fabric.accelerators.ACCELERATOR_REGISTRY)\n"
        "print(*lightning.pytorch.accelerators.AcceleratorRegistry)\n",
        is_real=first != "torch",
    )
    assert printed == ["npu", "npu"]


def test_the_distribution_in_two_packages_is_served_too(lightning):
    printed = lightning(
        "lightning_fabric",
        "pytorch_lightning",
        "import torch, lightning_fabric, pytorch_lightning.accelerators\n"
        "print(*pytorch_lightning.accelerators.AcceleratorRegistry)\n",
    )
    assert printed == ["npu"]


def test_nothing_is_imported_for_a_program_without_it(lightning):
    printed = lightning(
        "lightning.fabric",
        "lightning.pytorch",
        "import torch\nprint('npu_runtime.lightning.changes' in sys.modules, "
        "'lightning' in sys.modules)\n",
    )
    assert printed == ["False", "False"]
