"""Puts the switches of drawn C++ mutations into a copy of the repository."""

from __future__ import annotations

import shutil
from pathlib import Path

from mutations.draw import Mutation

HERE = Path(__file__).parent


def instrument(tree: Path, mutations: list[Mutation]) -> None:
    """Rewrites the C++ of `tree` so that NPU_MUTANT selects a mutation when a process starts."""
    for mutation in mutations:
        if not mutation.is_native:
            continue
        file = tree / mutation.file
        lines = file.read_text().split("\n")
        places = [at for at, line in enumerate(lines) if line == mutation.before]
        if not places:
            raise SystemExit(f"mutation {mutation.number} does not apply to {mutation.file}")
        place = min(places, key=lambda at: abs(at + 1 - mutation.line))
        lines[place] = mutation.after.replace("MUTANT", f"npu_mutant({mutation.number})")
        file.write_text("\n".join([f'#include "{HERE / "switch.h"}"', *lines]))


def install_hook(site_packages: Path) -> None:
    """Has each interpreter of an environment import the hook."""
    shutil.copy(HERE / "hook.py", site_packages / "npu_mutation_hook.py")
    (site_packages / "npu_mutation_hook.pth").write_text("import npu_mutation_hook\n")
