"""The wait for libraries, with small packages of their names: releases that nobody has seen."""

import pytest

# A transformers that has the question alone, and imports torch when it likes.
QUESTION = "def is_torch_npu_available(check_device=False):\n    return 'its own answer'\n"
ASK = "print(transformers.utils.import_utils.is_torch_npu_available())\n"


@pytest.fixture
def libraries(tmp_path, run_python):
    """Writes packages, and runs code that finds them before the installed ones."""

    def run(files, code, *, is_real=False, **environment):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = run_python(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}",
            is_real=is_real,
            **{"NPU_AUTO": "1", **environment},
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def transformers(question=QUESTION, init="", utils=""):
    return {
        "transformers/__init__.py": f"from transformers import utils\n{init}",
        "transformers/utils/__init__.py": f"from transformers.utils import import_utils\n{utils}",
        "transformers/utils/import_utils.py": question,
    }


@pytest.mark.parametrize(
    "code, is_real, autoload",
    [
        ("import torch, transformers\n", False, "1"),
        ("import transformers, torch\n", True, "1"),
        ("import npu_runtime, transformers\n", False, "0"),
    ],
)
def test_the_question_is_answered_in_each_order_of_imports(libraries, code, is_real, autoload):
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = libraries(transformers(), code + ASK, is_real=is_real, **variables)
    assert done.stdout.split() == ["True"], done.stderr
    assert "run on npu where no device is named: NPU_AUTO=1 requests it" in done.stderr


def test_a_library_that_imports_torch_while_it_is_imported_is_changed_when_it_is_whole(libraries):
    question = f"import torch\n{QUESTION}"  # torch comes first, and finds half a module
    copied = "from transformers.utils.import_utils import is_torch_npu_available as copied\n"
    code = f"import transformers, json.tool\n{ASK}print(transformers.utils.copied())"
    done = libraries(transformers(question, utils=copied), code, is_real=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_nothing_is_imported_and_nothing_named_torch_npu_appears(libraries):
    done = libraries(
        {},
        "import torch, importlib.util\n"
        "names = ('transformers', 'accelerate', 'diffusers', 'peft', 'torch_npu')\n"
        "print([name for name in names if name in sys.modules])\n"
        "print('npu_runtime.library_patches.hugging_face' in sys.modules)\n"
        "print(importlib.util.find_spec('torch_npu'))",
    )
    assert done.stdout.splitlines() == ["[]", "False", "None"], done.stderr


def test_it_can_be_switched_off(libraries):
    done = libraries(transformers(), f"import torch, transformers\n{ASK}", NPU_HUGGINGFACE="0")
    assert done.stdout.strip() == "its own answer"
    assert done.stderr == ""


def test_a_release_without_the_question_is_said_once_and_left_alone(libraries):
    files = transformers(question="", init="import transformers.trainer")
    files["transformers/trainer.py"] = "class Trainer: pass\n"
    done = libraries(files, "import torch, transformers; print(transformers.trainer.Trainer)")
    assert done.stdout.strip() == "<class 'transformers.trainer.Trainer'>"
    told = " in this release, and is not patched for npu there"
    assert done.stderr.splitlines() == [
        f"npu: transformers.utils.import_utils has no is_torch_npu_available{told}",
        f"npu: Trainer has no _move_model_to_device{told}",
    ]


def test_a_change_that_fails_breaks_no_import(libraries):
    files = transformers(init="import transformers.trainer")
    files["transformers/trainer.py"] = "there = 'but no Trainer'\n"
    done = libraries(files, "import torch, transformers; print(transformers.trainer.there)")
    assert done.stdout.strip() == "but no Trainer"
    assert done.stderr.startswith(
        "npu: transformers.trainer is not patched for npu, because its release"
    )
    assert "AttributeError" in done.stderr


def test_huaweis_own_package_goes_first(libraries):
    files = transformers() | {"torch_npu.py": "raise RuntimeError('nobody imports it')\n"}
    done = libraries(files, f"import torch, transformers\n{ASK}")
    assert done.stdout.strip() == "its own answer"
    assert done.stderr.strip() == (
        "npu: Huawei's torch_npu is installed, so transformers is left to it. "
        "NPU_HUGGINGFACE=0 disables this message."
    )


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
        "import torch\nprint('npu_runtime.library_patches.lightning' in sys.modules, "
        "'lightning' in sys.modules)\n",
    )
    assert printed == ["False", "False"]
