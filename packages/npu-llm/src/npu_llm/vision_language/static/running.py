"""Runs a model's parts as programs of fixed sizes.

What is read one by one runs in pieces, the last one padded; patches of images are padded up to a
bucket, as a sequence of their own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.choices import Verify
from npu_llm.errors import ContextError
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.kv_cache.step_weights import StepWeights
from npu_llm.models.entry import REFERENCE, VARIANTS, Entry
from npu_llm.models.static_programs import LoadVariant, write_variant
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import wrong_result
from npu_llm.vision_language.language_cache import MASK, POSITIONS, Port
from npu_llm.vision_language.places import EMBED, HEAD, LANGUAGE
from npu_llm.vision_language.static.cache import StaticLanguageCache
from npu_runtime import Program, observe

__all__ = ["Check", "StaticParts"]

# Compares a model of these parts with torch; returns what differs, in words, or None.
Check = Callable[["StaticParts", Path], str | None]

_CHUNKS = (1, 16, 128)
_SMALLEST_CACHE = 256
_SMALLEST_PATCHES = 64
# The most patches of all images together: what attention over them costs grows by their square.
_MOST_PATCHES = 16384
# Programs that are kept: each holds its own weights in the form that the device needs.
_KEPT = 12


@dataclass
class _Variants:
    """Programs of one entry by part and size, and whether they were found right."""

    entry: Entry
    load: LoadVariant
    programs: OrderedDict[tuple[str, str], Program] = field(default_factory=OrderedDict)
    right: set[tuple[str, str]] = field(default_factory=set)
    compiled: int = 0

    def folder(self, name: str, size: object) -> Path:
        """Returns where a program is."""
        return self.entry.folder / VARIANTS / name / str(size)

    def get(self, name: str, size: object, shapes: Mapping[str, tuple[int, ...]]) -> Program:
        """Returns a program, as it is."""
        key = (name, str(size))
        if key not in self.programs:
            folder = self.folder(name, size)
            path = write_variant(self.entry.folder / f"{name}.xml", folder, shapes)
            program = self.load(path, folder / "blob", {}, {})
            self.compiled += not program.loaded_from_cache
            self.programs[key] = program
        self.programs.move_to_end(key)
        while len(self.programs) > _KEPT:
            self.programs.popitem(last=False)
        return self.programs[key]


class StaticParts:
    """A model's parts in the static pipeline; threads may share them."""

    def __init__(self, entry: Entry, load: LoadVariant, *, when: Verify, check: Check) -> None:
        """Names the model; loads nothing.

        Args:
            entry: its folder.
            load: loads a program of fixed sizes.
            when: when programs are compared with torch.
            check: how.
        """
        self.entry = entry
        self._variants = _Variants(entry, load)
        self._when: Verify = when
        self._check = check
        self._lock = threading.RLock()
        # For comparing one program: the others are used as they are.
        self._trial: tuple[str, Any] | None = None
        self._used: set[tuple[str, str]] = set()

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs a part without a cache; see Parts.run."""
        about = self._about["parts"][name]
        given = {
            port: tensors[port].detach().to("cpu", getattr(torch, dtype))
            for port, dtype in about["dtypes"].items()
        }
        with observe.span("prefill", name, batch=next(iter(given.values())).shape[0]):
            if about["leading"] == 0:
                return self._run_packed(name, given, about["merge"])
            return self._run_each(name, given, about["leading"])

    def new_cache(self) -> StaticLanguageCache:
        """Returns an empty cache of the language model."""
        language = self._about["language"]
        layout = StaticLayout.from_dict(language["layout"])
        ports = {
            name: Port(layout.forms.get(name, (1, "whole")), language["adds"][name])
            for name in layout.inputs
            if name == POSITIONS or name.partition(".")[0] == MASK
        }
        return StaticLanguageCache(
            _Steps(self, layout),
            self._sizes(),
            relocation=language["relocation"],
            ports=ports,
            context=self.entry.about["context_length"],
        )

    def start(self) -> tuple[bool, Verdict]:
        """Loads what a generation of one token needs.

        Returns:
            Whether all of it came from the cache; and the outcome of comparing it with torch.

        Raises:
            WrongResultError: [wrong-result] if its results differ from torch's.
        """
        steps = _Steps(self, StaticLayout.from_dict(self._about["language"]["layout"]))
        steps.get(StepSizes(1, self._sizes().capacities[0], 1))
        for name in (EMBED, HEAD):
            self._get(name, 1)
        if self._when == "off":
            return not self._variants.compiled, Verdict("unchecked", 'verify is "off"')
        return not self._variants.compiled, Verdict("right")

    @property
    def _about(self) -> Mapping[str, Any]:
        about: Mapping[str, Any] = self.entry.about["static_parts"]
        return about

    def _sizes(self) -> StaticSizes:
        """Returns the sizes in which the language model's programs come."""
        limit, prompt = self.entry.about["context_length"], self._about["prompt"]
        chunks: tuple[int, ...] = _CHUNKS
        if self._about["language"]["sees_ahead"]:  # a prompt is read at once
            doubled = StaticSizes(limit, smallest=2 * _CHUNKS[-1]).capacities
            chunks = (*(one for one in _CHUNKS if one < doubled[0]), *doubled)
        smallest = min(_doubled(_SMALLEST_CACHE, self._about["checked"]), limit)
        if self._trial is not None and self._trial[0] == LANGUAGE:
            sizes: StepSizes = self._trial[1]
            alone = {1, sizes.tokens}
            if sizes.tokens < prompt:
                alone.add(next((one for one in chunks if one >= prompt), chunks[-1]))
            capacity = sizes.capacity
            return StaticSizes(capacity, chunks=sorted(alone), smallest=capacity)
        return StaticSizes(limit, chunks=chunks, smallest=smallest)

    def _run_each(
        self, name: str, given: Mapping[str, torch.Tensor], leading: int
    ) -> list[torch.Tensor]:
        """Runs a part that reads images, or tokens, one by one, in pieces."""
        first = next(iter(given.values()))
        outer, dim = first.shape[:leading], leading - 1
        ones = [1] * dim
        flat = {
            port: tensor.reshape(*ones, -1, *tensor.shape[leading:])
            for port, tensor in given.items()
        }
        total, at = outer.numel(), 0
        forced = self._forced(name)
        chunks = (forced,) if forced else _CHUNKS if leading == 2 else _CHUNKS[:1]
        pieces = []
        while at < total:
            size = next((one for one in chunks if one >= total - at), chunks[-1])
            count = min(size, total - at)
            program = self._get(name, size)
            rows = [
                _padded(flat[port.name].narrow(dim, at, count), dim, size)
                for port in program.inputs
            ]
            found = program.run(rows, output_device="cpu")
            pieces.append([result.narrow(dim, 0, count) for result in found])
            at += count
        joined = [torch.cat(one, dim) for one in zip(*pieces, strict=True)]
        return [result.reshape(*outer, *result.shape[leading:]) for result in joined]

    def _run_packed(
        self, name: str, given: Mapping[str, torch.Tensor], merge: int
    ) -> list[torch.Tensor]:
        """Runs an encoder of patches, padded up to a bucket by a sequence of their own."""
        count = next(len(one) for port, one in given.items() if self._dims(name, port)[0] == -1)
        if count > _MOST_PATCHES:
            raise ContextError(
                f"pixel_values: must have at most {_MOST_PATCHES:,} patches in the static "
                f"pipeline, of all images together; got {count:,}. Pass fewer or smaller images.",
                code="context-overflow",
            )
        size = self._forced(name) or _doubled(_SMALLEST_PATCHES * merge, count)
        program = self._get(name, size)
        filled = []
        for port in program.inputs:
            tensor, kind = given[port.name], self._dims(name, port.name)[0]
            length = _lengths(size, merge)[kind]
            missing = length - len(tensor)
            if kind == "sequences":  # more of no patch
                more = tensor[-1:].expand(missing)
            elif kind == "merged":  # each stays where it is
                more = torch.arange(len(tensor), length)
            else:
                more = tensor.new_zeros(missing, *tensor.shape[1:])
            filled.append(torch.cat([tensor, more]).contiguous())
        found = program.run(filled, output_device="cpu")
        return [result[: len(result) * count // size].contiguous() for result in found]

    def _dims(self, name: str, port: str) -> list[int | str]:
        dims: list[int | str] = self._about["parts"][name]["ports"][port]
        return dims

    def _forced(self, name: str) -> int | None:
        """Returns the only size in which a part comes, where that is compared with torch."""
        if self._trial is None or self._trial[0] != name:
            return None
        size: int = self._trial[1]
        return size

    def _get(self, name: str, size: int) -> Program:
        """Returns the program of a part without a cache."""
        about = self._about["parts"][name]
        lengths = _lengths(size, about["merge"])
        shapes = {
            port: tuple(lengths.get(one, one) for one in dims)
            for port, dims in about["ports"].items()
        }
        return self.program(name, size, shapes)

    def program(self, name: str, size: Any, shapes: Mapping[str, tuple[int, ...]]) -> Program:
        """Returns a program, compared with torch."""
        with self._lock:
            program = self._variants.get(name, size, shapes)
            key = (name, str(size))
            if self._trial is not None:
                self._used.add(key)
            elif self._when != "off" and key not in self._variants.right:
                self._compare(name, size, program)
            return program

    def _compare(self, name: str, size: Any, program: Program) -> None:
        """Compares a program with torch, unless that is known, and those that run with it.

        Raises:
            WrongResultError: [wrong-result] if results differ from torch's.
        """
        known = read_kept(self._variants.folder(name, size))
        if known is not None and program.loaded_from_cache and self._when != "always":
            self._variants.right.add((name, str(size)))
            return
        trial = StaticParts(self.entry, self._variants.load, when="off", check=self._check)
        trial._variants, trial._trial = self._variants, (name, size)
        problem = self._check(trial, self.entry.folder / REFERENCE)
        if problem is not None:
            raise wrong_result(self.entry.name, f"{problem}, in programs of {name} {size}")
        assert (name, str(size)) in trial._used, "steps are split so that this program runs"
        for one in trial._used:
            self._variants.right.add(one)
            keep_verdict(self._variants.folder(*one), Verdict("right"))


@dataclass(frozen=True)
class _Steps:
    """The language model's programs by their sizes."""

    parts: StaticParts
    layout: StaticLayout

    def get(self, sizes: StepSizes) -> Program:
        """Returns the program for these sizes, compared with torch."""
        return self.parts.program(LANGUAGE, sizes, self.layout.port_shapes(sizes))

    def weights(self, sizes: StepSizes) -> StepWeights:
        """Returns nothing: weights are constants."""
        return StepWeights()


def _lengths(size: int, merge: int) -> dict[int | str, int]:
    """Returns what stands for each size that varies; each sequence has a merged patch at least."""
    return {-1: size, "merged": size // merge, "sequences": size // merge + 1}


def _doubled(smallest: int, wanted: int) -> int:
    while smallest < wanted:
        smallest *= 2
    return smallest


def _padded(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor.contiguous()
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
