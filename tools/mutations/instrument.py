"""Puts the switches of drawn C++ mutations into a copy of the repository."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

from mutations.draw import Mutation
from mutations.hook import place_of

HERE = Path(__file__).parent


def instrument(tree: Path, mutations: list[Mutation]) -> None:
    """Rewrites the C++ of `tree` so that NPU_MUTANT selects a mutation when a process starts."""
    for mutation in mutations:
        if not mutation.is_native:
            continue
        file = tree / mutation.file
        lines = file.read_text().split("\n")
        lines[place_of(asdict(mutation), lines)] = mutation.after.replace(
            "MUTANT", f"npu_mutant({mutation.number})"
        )
        file.write_text("\n".join([f'#include "{HERE / "switch.h"}"', *lines]))


def install_hook(site_packages: Path) -> None:
    """Has each interpreter of an environment import the hook."""
    shutil.copy(HERE / "hook.py", site_packages / "npu_mutation_hook.py")
    (site_packages / "npu_mutation_hook.pth").write_text("import npu_mutation_hook\n")
