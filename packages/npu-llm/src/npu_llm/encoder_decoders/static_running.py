"""Runs a model's parts as programs of fixed sizes, a set of them for each bucket of source lengths.

A source is padded up to its bucket, and its mask hides the padding. Rows run one after the other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.choices import Verify
from npu_llm.encoder_decoders.running import plain
from npu_llm.encoder_decoders.static_cross_cache import (
    SOURCE_MASK,
    CrossPrograms,
    StaticCrossCache,
)
from npu_llm.kv_cache.cache import Relocation
from npu_llm.kv_cache.static import StepPrograms
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.models.entry import REFERENCE, VARIANTS, Entry
from npu_llm.models.static_programs import LoadVariant, StaticPrograms, write_variant
from npu_llm.models.step_check import OneProgram
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import Load, wrong_result
from npu_runtime import Program, observe

__all__ = ["StaticParts"]

# The smallest bucket of tokens of a source, and the smallest cache: sentences to be translated.
_SMALLEST = 64
# Buckets whose programs are kept: each holds its own weights in the form that the device needs.
_KEPT = 2


@dataclass(frozen=True)
class _Facts:
    """What an entry says of its static programs.

    Attributes:
        name: the model's.
        source: how long the encoder's result is; None if that varies.
        shapes: of the inputs of "encoder" and "bridge", and what the decoders are "given"; -1
            stands for the source.
        crossing: the names of the bridge's results.
        decoders: layout and relocation of each decoder.
        positions: how many tokens a decoder takes.
        limit: how many tokens the encoder takes.
    """

    name: str
    source: int | None
    shapes: Mapping[str, Mapping[str, Sequence[int]]]
    crossing: Sequence[str]
    decoders: Mapping[str, tuple[StaticLayout, Relocation]]
    positions: int
    limit: int

    @staticmethod
    def of(entry: Entry) -> _Facts:
        about = entry.about
        static = about["static_parts"]
        decoders = {
            name: (StaticLayout.from_dict(known["layout"]), known["relocation"])
            for name, known in static["decoders"].items()
        }
        return _Facts(
            entry.name,
            static["source"],
            {name: static[name] for name in ("encoder", "bridge", "given")},
            about["outputs"]["bridge"],
            decoders,
            about["positions"],
            about["source_positions"],
        )

    def sized(self, name: str, length: int) -> dict[str, tuple[int, ...]]:
        """The shapes of some inputs for a source of this length."""
        return {
            port: tuple(length if size == -1 else size for size in shape)
            for port, shape in self.shapes[name].items()
        }

    @property
    def sizes(self) -> StaticSizes:
        """The sizes of the decoders' programs."""
        return StaticSizes(self.positions, smallest=_SMALLEST, positions=self.positions)


@dataclass(frozen=True)
class _Bucket:
    """The programs for sources of one length, padding included.

    Attributes:
        facts: what is known about them.
        length: of the encoder's result.
        encoder: its program.
        bridge: computes what the decoder reads of a source.
        decoders: the programs of each decoder.
        sizes: the sizes in which these come.
    """

    facts: _Facts
    length: int
    encoder: Program
    bridge: Program
    decoders: Mapping[str, StepPrograms]
    sizes: StaticSizes

    def encode(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs the encoder row by row; see Parts.encode."""
        given = {name: plain(tensor) for name, tensor in inputs.items()}
        main = next(iter(given.values()))
        found = []
        with observe.span("prefill", "encode", batch=len(main)):
            for row in range(len(main)):
                rows = [self._fit(given[port.name][row : row + 1]) for port in self.encoder.inputs]
                found += self.encoder.run(rows, output_device="cpu")
        hidden = torch.cat(found)
        if self.facts.source is None:
            hidden = hidden[:, : main.shape[1]].contiguous()
        return hidden, given.get("attention_mask")

    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Computes what the decoder reads of a source; see CrossPrograms.bridge."""
        with observe.span("prefill", "bridge", batch=1):
            found = self.bridge.run([self._fit(plain(hidden))], output_device="cpu")
        named = dict(zip(self.facts.crossing, found, strict=True))
        if self.facts.source is None:
            shown = torch.ones(hidden.shape[:2]) if mask is None else mask
            named[SOURCE_MASK] = self._fit(plain(shown.long()))
        return named

    def new_cache(self, decoder: str = "decoder") -> StaticCrossCache:
        """Returns a cache for sources of this bucket; see Parts.new_cache."""
        return _new_cache(self.facts, self.sizes, decoder, lambda _: self)

    def _fit(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pads a row of a source whose length varies: (1, source) or (1, source, width)."""
        if self.facts.source is not None:
            return tensor
        missing = self.length - tensor.shape[1]
        return torch.nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 2) + [0, missing])


def _new_cache(
    facts: _Facts, sizes: StaticSizes, decoder: str, find: Callable[[int], _Bucket]
) -> StaticCrossCache:
    """Returns a cache that takes its programs from the bucket of a source."""

    def programs(length: int) -> CrossPrograms:
        bucket = find(length)
        return CrossPrograms(bucket.read, bucket.decoders[decoder])

    relocation = facts.decoders[decoder][1]
    return StaticCrossCache(programs, sizes, relocation=relocation, positions=facts.positions)


class StaticParts:
    """A model's parts in the static pipeline; threads may share them."""

    def __init__(self, entry: Entry, load: LoadVariant, *, when: Verify) -> None:
        """Names the model; loads nothing.

        Args:
            entry: its folder.
            load: loads a program of fixed sizes.
            when: when programs are compared with torch.
        """
        self._entry = entry
        self._facts = _Facts.of(entry)
        self._load = load
        self._when = when
        self._lengths = StaticSizes(self._facts.limit, smallest=_SMALLEST)
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()
        self._lock = threading.RLock()

    def encode(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs the encoder; see Parts.encode."""
        return self._find(next(iter(inputs.values())).shape[1]).encode(inputs)

    def new_cache(self, decoder: str = "decoder") -> StaticCrossCache:
        """Returns an empty cache for one of the decoders; see Parts.new_cache."""
        return _new_cache(self._facts, self._facts.sizes, decoder, self._find)

    def start(self) -> tuple[bool, Verdict]:
        """Loads what a generation of one token needs.

        Returns:
            Whether all of it came from the cache; and the outcome of comparing it with torch.

        Raises:
            WrongResultError: [wrong-result] if its results differ from torch's.
        """
        bucket = self._find(1)
        programs: Any = bucket.decoders["decoder"]
        step = programs.get(StepSizes(1, bucket.sizes.capacities[0], 1))
        loaded = (bucket.encoder, bucket.bridge, step)
        return all(one.loaded_from_cache for one in loaded), programs.verdict

    def _find(self, length: int) -> _Bucket:
        """Returns the bucket of a source with this many tokens, or of any sound."""
        size = self._facts.source or self._lengths.capacity(length)
        with self._lock:
            if size not in self._buckets:
                self._buckets[size] = self._make(size)
            self._buckets.move_to_end(size)
            while len(self._buckets) > _KEPT:
                self._buckets.popitem(last=False)
            return self._buckets[size]

    def _make(self, length: int) -> _Bucket:
        folder = self._entry.folder / VARIANTS / str(length)
        encoder, bridge = (self._whole(name, folder, length) for name in ("encoder", "bridge"))
        bucket = _Bucket(self._facts, length, encoder, bridge, {}, self._facts.sizes)
        given = self._facts.sized("given", length)
        decoders = {
            name: StaticPrograms(
                self._entry.folder / f"{name}.xml",
                replace(layout, given=given),
                folder / name,
                self._load,
                verify=self._verifier(name, bucket),
            )
            for name, (layout, _) in self._facts.decoders.items()
        }
        return replace(bucket, decoders=decoders)

    def _whole(self, name: str, folder: Path, length: int) -> Program:
        shapes = self._facts.sized(name, length)
        path = write_variant(self._entry.folder / f"{name}.xml", folder / name, shapes)
        return self._load(path, folder / name / "blob", {}, {})

    def _verifier(self, name: str, bucket: _Bucket) -> Callable[..., tuple[Program, Verdict]]:
        """Returns what loads a decoder's programs, and compares them and the others with torch."""

        def verify(sizes: StepSizes, load: Load, folder: Path) -> tuple[Program, Verdict]:
            program = load({})
            if self._when == "off":
                return program, Verdict("unchecked", 'verify is "off"')
            known = read_kept(folder)
            used = (program, bucket.encoder, bucket.bridge)
            is_known = known is not None and all(one.loaded_from_cache for one in used)
            if known is not None and is_known and self._when != "always":
                return program, known
            # Heavy, and not needed for a start from the cache.
            from npu_llm.encoder_decoders.reference import check_parts
            from npu_llm.part_programs.reference import read_reference

            one = OneProgram(program, self._facts.decoders[name][0], sizes)
            alone = replace(
                bucket,
                decoders={name: one},
                sizes=StaticSizes(sizes.capacity, chunks=(sizes.tokens,), smallest=sizes.capacity),
            )
            reference = read_reference(self._entry.folder / REFERENCE)
            problem = check_parts(alone, reference, decoder=name)
            if problem is not None:
                raise wrong_result(self._facts.name, f"{problem}, in programs of {sizes}")
            known = Verdict("right")
            keep_verdict(folder, known)
            return program, known

        return verify
