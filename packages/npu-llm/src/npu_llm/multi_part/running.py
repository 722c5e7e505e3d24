"""Programs of a model's parts, with dynamic shapes or in sets of fixed sizes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.choices import Verify
from npu_llm.kv_cache.cache import StepCache
from npu_llm.kv_cache.static_layout import StaticLayout, StepSizes
from npu_llm.kv_cache.step_weights import StepWeights
from npu_llm.models.entry import VARIANTS, CompiledForm, Entry
from npu_llm.models.static_programs import LoadVariant, fixed_path, load_variant, write_variant
from npu_llm.precision import compile_options
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import wrong_result
from npu_runtime import Program, load_program, observe

__all__ = ["OUTER", "DynamicParts", "Parts", "StaticParts", "StepVariants"]

OUTER = "outer.safetensors"  # parameters of code between the parts
_FORMS = "compiled"
# Number of cached programs of fixed sizes: each has its own weights in the device's format.
_KEPT = 12


class Parts(ABC):
    """A model's programs, loaded on demand; thread-safe.

    Attributes:
        entry: the folder with the programs.
    """

    def __init__(
        self, entry: Entry, *, when: Verify, check: Callable[[Parts, str], str | None]
    ) -> None:
        """Stores the arguments; loads nothing.

        Args:
            entry: the folder with the programs.
            when: when to compare programs with torch.
            check: runs a part by name, with its surrounding parts, on the inputs of the reference;
                returns a description of the difference from torch, or None.
        """
        self.entry = entry
        self._when: Verify = when
        self._check = check
        self._lock = threading.RLock()

    @property
    def outputs(self) -> dict[str, tuple[str, ...]]:
        """The names of each program's outputs except states, by the program's name."""
        return {name: tuple(names) for name, names in self.entry.about["outputs"].items()}

    @abstractmethod
    def start(self) -> tuple[bool, Verdict]:
        """Loads the programs for the first token.

        Returns:
            Whether all of them came from the cache, and the result of comparing them with torch.

        Raises:
            WrongResultError: [wrong-result] if results differ from torch's.
        """

    @abstractmethod
    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs a part without a cache on named tensors; returns its results, on cpu."""

    @abstractmethod
    def new_cache(self, name: str) -> StepCache:
        """Returns an empty cache for a part with one."""


class DynamicParts(Parts):
    """Programs with dynamic shapes.

    Attributes:
        first: programs that are loaded at the start; all if empty.
        checked: programs that are compared with torch together, None for all, by the name of the
            one whose first load triggers the comparison. The first group determines the model's
            verdict.
    """

    first: ClassVar[tuple[str, ...]] = ()
    checked: ClassVar[Mapping[str, tuple[str, ...] | None]]

    def __init__(
        self, entry: Entry, *, when: Verify, check: Callable[[Parts, str], str | None]
    ) -> None:
        """Stores the arguments; see Parts."""
        super().__init__(entry, when=when, check=check)
        self._verdict = Verdict("unchecked", 'verify is "off"')
        self._loaded: dict[str, Program] = {}

    def start(self) -> tuple[bool, Verdict]:
        """Loads the first programs; see Parts.start."""
        loaded = [self.get(name) for name in self.first or self.outputs]
        return all(one.loaded_from_cache for one in loaded), self._verdict

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs a part without a cache; see Parts.run."""
        program = self.get(name)
        given = [
            tensors[port.name].detach().to("cpu", port.dtype).contiguous()
            for port in program.inputs
        ]
        with observe.span("prefill", name, batch=given[0].shape[0]):
            return list(program.run(given, output_device="cpu"))

    def get(self, name: str) -> Program:
        """Returns a program; checked ones are compared with torch on first load."""
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
                if name in self.checked and self._when != "off":
                    self._compare(name)
            return self._loaded[name]

    def _load(self, name: str) -> Program:
        form = CompiledForm(self.entry.folder / _FORMS / name)
        form.clear_unless_sound()
        options = {**compile_options(self.entry.precision), "CACHE_MODE": "OPTIMIZE_SIZE"}
        with fixed_path(self.entry.folder) as folder:
            program = load_program(
                folder / f"{name}.xml",
                name=f"{self.entry.name} {name}",
                options=options,
                cache_dir=form.blobs,
            )
        if not program.loaded_from_cache:
            form.folder.mkdir(parents=True, exist_ok=True)
            form.record()
        return program

    def _compare(self, name: str) -> None:
        folder = self.entry.folder / _FORMS / name
        known = read_kept(folder)
        names = self.checked[name] or tuple(self.outputs)
        is_known = known is not None and all(self.get(one).loaded_from_cache for one in names)
        if known is None or not is_known or self._when == "always":
            problem = self._check(self, name)
            if problem is not None:
                raise wrong_result(self.entry.name, problem)
            known = Verdict("right")
            keep_verdict(folder, known)
        if name == next(iter(self.checked)):
            self._verdict = known


@dataclass
class _Variants:
    """Programs of one entry by part and size, and the programs that passed a comparison."""

    entry: Entry
    load: LoadVariant
    programs: OrderedDict[tuple[str, str], Program] = field(default_factory=OrderedDict)
    right: set[tuple[str, str]] = field(default_factory=set)
    compiled: int = 0

    def folder(self, key: tuple[str, str]) -> Path:
        """Returns the folder of a program."""
        return self.entry.folder / VARIANTS / key[0] / key[1]

    def get(self, key: tuple[str, str], shapes: Mapping[str, tuple[int, ...]]) -> Program:
        """Returns a program without a comparison."""
        if key not in self.programs:
            folder = self.folder(key)
            path = write_variant(self.entry.folder / f"{key[0]}.xml", folder, shapes)
            program = self.load(path, folder / "blob", {}, {})
            self.compiled += not program.loaded_from_cache
            self.programs[key] = program
        self.programs.move_to_end(key)
        while len(self.programs) > _KEPT:
            self.programs.popitem(last=False)
        return self.programs[key]


class StaticParts(Parts):
    """Programs of fixed sizes, each compiled and compared with torch on demand.

    A program is compared in a trial, in which other parts of the same kind have only that size, so
    that the program runs. Other programs that run in a successful trial need no separate one.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        when: Verify,
        check: Callable[[Parts, str], str | None],
        load: LoadVariant | None = None,
    ) -> None:
        """Stores the arguments; see Parts.

        Args:
            entry: the folder with the programs.
            when: when to compare programs with torch.
            check: see Parts.
            load: loads a program of fixed sizes; by default on the device in use.
        """
        super().__init__(entry, when=when, check=check)
        load = load or load_variant(entry.name, compile_options(entry.precision))
        self._variants = _Variants(entry, load)
        self._trial: tuple[str, Any] | None = None
        self._used: set[tuple[str, str]] = set()

    @abstractmethod
    def _load_first(self) -> None:
        """Loads the programs for the first token."""

    def start(self) -> tuple[bool, Verdict]:
        """Loads the first programs; see Parts.start."""
        self._load_first()
        is_off = self._when == "off"
        verdict = Verdict("unchecked", 'verify is "off"') if is_off else Verdict("right")
        return not self._variants.compiled, verdict

    def program(self, name: str, size: Any, shapes: Mapping[str, tuple[int, ...]]) -> Program:
        """Returns a program, compared with torch.

        Args:
            name: name of the part.
            size: its size; the text names its folder.
            shapes: shapes of its inputs.

        Raises:
            WrongResultError: [wrong-result] if results differ from torch's.
        """
        with self._lock:
            key = (name, str(size))
            program = self._variants.get(key, shapes)
            if self._trial is not None:
                self._used.add(key)
            elif self._when != "off" and key not in self._variants.right:
                self._compare(key, size, program)
            return program

    @property
    def _static(self) -> Mapping[str, Any]:
        about: Mapping[str, Any] = self.entry.about["static_parts"]
        return about

    def _only_size(self, name: str) -> Any | None:
        """Returns the only size of a part in its trial; None for any size."""
        return None if self._trial is None or self._trial[0] != name else self._trial[1]

    def _compare(self, key: tuple[str, str], size: Any, program: Program) -> None:
        """Compares a program and those that run with it with torch, unless the result is known."""
        known = read_kept(self._variants.folder(key))
        if known is not None and program.loaded_from_cache and self._when != "always":
            self._variants.right.add(key)
            return
        trial = type(self)(self.entry, when="off", check=self._check, load=self._variants.load)
        trial._variants, trial._trial = self._variants, (key[0], size)
        problem = self._check(trial, key[0])
        if problem is not None:
            raise wrong_result(self.entry.name, f"{problem}, in programs of {key[0]} {size}")
        assert key in trial._used, "steps are split so that this program runs"
        for one in trial._used:
            self._variants.right.add(one)
            keep_verdict(self._variants.folder(one), Verdict("right"))


@dataclass(frozen=True)
class StepVariants:
    """The programs of a part with a cache, by step size.

    Attributes:
        parts: the model's programs.
        name: name of the part.
        layout: ports of the programs.
        sized: converts a step's size to a program's.
    """

    parts: StaticParts
    name: str
    layout: StaticLayout
    sized: Callable[[StepSizes], Any] = lambda sizes: sizes

    def get(self, sizes: StepSizes) -> Program:
        """Returns the program for these sizes, compared with torch."""
        return self.parts.program(self.name, self.sized(sizes), self.layout.port_shapes(sizes))

    def weights(self, sizes: StepSizes) -> StepWeights:
        """Returns no inputs: weights are constants."""
        return StepWeights()
