"""Estimates NPUW, OpenVINO's LLM pipeline for NPUs: sums over its calls, in ms.

    optimum-cli export openvino --model MODEL --weight-format int4 --sym --group-size -1 FOLDER
    python packages/npu-llm/benchmarks/npuw.py FOLDER [--target 4000 5010] [--layers 30]

Prints the compiler's estimates, not measurements. `npu-compiler target install` installs the
compiler. optimum-intel exports the model in a separate environment because it needs an older
transformers. NPUW cuts the model into programs and compiles equal layers once. A recorder
(_npuw_recorder.c, built with gcc) replaces the plugin's compiler and keeps each program, which the
platform's compiler then estimates. The program of equal layers counts once per layer, so `--layers
30` prints the sums of a model with 30 layers from the export of one with 8. The estimates do not
contain the overhead of a call.

Without a device NPUW takes a general configuration. "As on a device" is the configuration for a
device with a compiler that quantizes dynamically; the compiler of 2026.4.1 does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from npu_compiler.target_compiler import ESTIMATE_NOTE, TargetCompiler, target_compiler

_RECORDER = Path(__file__).with_name("_npuw_recorder.c")
_LOADER = "libopenvino_intel_npu_compiler_loader.so"
_COMPILE = """
import json, sys, openvino
model, properties = json.loads(sys.argv[1])
openvino.Core().compile_model(model, "NPU", properties)
"""
_CONFIGURATIONS = {
    "general": {},
    "as on a device": {
        "NPUW_DQ": "YES",
        "NPUW_DQ_FULL": "NO",
        "NPU_COMPILER_DYNAMIC_QUANTIZATION": "YES",
        "NPUW_DCOFF_TYPE": "",
        "NPUW_DCOFF_SCALE": "NO",
    },
}
_STAGES = {"decode": "_kv", "prefill": "_prefill_"}  # in the names of NPUW's programs
_HEAD, _REPEATED = "_lm_head_", "_REP"


@dataclass(frozen=True)
class Program:
    """One of NPUW's programs, with the compiler's options that the plugin sets."""

    model: ov.Model
    options: dict[str, str]

    @property
    def name(self) -> str:
        """The name that NPUW chose."""
        return str(self.model.get_friendly_name())

    @property
    def has_attention(self) -> bool:
        """Whether it contains a layer of the language model."""
        return any(node.get_type_name() == "Softmax" for node in self.model.get_ops())


def build_plugin(folder: Path) -> None:
    """Copies openvino and adds the recorder as the NPU plugin's compiler."""
    package = shutil.copytree(Path(ov.__file__).parent, folder / "openvino")
    loader = package / "libs" / _LOADER
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", _RECORDER, "-o", loader], check=True)


def record(model: Path, plugin: Path, recordings: Path, properties: Mapping[str, object]) -> None:
    """Compiles a model by NPUW with the recorder, in a process with the copy of openvino."""
    all_properties = {
        "NPU_COMPILER_TYPE": "PLUGIN",
        "NPU_MODEL_SERIALIZER_VERSION": "ALL_WEIGHTS_COPY",
        "NPU_USE_NPUW": "YES",
        "NPUW_LLM": "YES",
        **properties,
    }
    paths = {"PYTHONPATH": str(plugin), "NPUW_RECORDINGS": str(recordings)}
    recordings.mkdir()
    subprocess.run(
        [sys.executable, "-c", _COMPILE, json.dumps([str(model), all_properties])],
        env={**os.environ, **paths},
        check=True,
    )


def read_programs(recordings: Path) -> Iterator[Program]:
    """Reads the recorder's files: IRs with their weights, and flags."""
    core = ov.Core()
    for file in sorted(recordings.glob("*.ir")):
        graph, weights = file.with_suffix(".xml"), file.with_suffix(".bin")
        with file.open("rb") as content:
            content.seek(struct.calcsize("<HHI"))
            for part in (graph, weights):
                (size,) = struct.unpack("<Q", content.read(8))
                part.write_bytes(content.read(size))
        flags = file.with_suffix(".flags").read_text().partition("--config ")[2]
        options = dict(flag.split("=", 1) for flag in shlex.split(flags))
        for unused in ("NPU_PLATFORM", "LOG_LEVEL", "NPU_MODEL_SERIALIZER_VERSION"):
            options.pop(unused, None)
        yield Program(core.read_model(graph, weights), options)


def print_sums(compiler: TargetCompiler, programs: list[Program], target: str, layers: int) -> None:
    """Prints a line for decode and one for prefill: the sum, its parts and the number of calls."""
    for stage, mark in _STAGES.items():
        called = [p for p in programs if re.search(f"{mark}|{_HEAD}", p.name)]
        repeated = [p for p in called if _REPEATED in p.name]
        if len(repeated) != 1:
            sys.exit(f"{stage} must have one program of equal layers, got {len(repeated)}")
        repeats = layers - sum(p.has_attention for p in called) + 1
        total, calls, parts, refused = 0.0, 0, [], {}
        for program in called:
            report = compiler.compile(program.model, target, program.options)
            if report.estimate is None:
                refused[program.name] = report.reason
                continue
            count = repeats if program is repeated[0] else 1
            latency_ms = report.estimate.latency_ms
            total += count * latency_ms
            calls += count
            parts.append(f"{count} x {latency_ms:.3f}" if count > 1 else f"{latency_ms:.3f}")
        line = f"{total:.2f} ms = {' + '.join(parts)} ({calls} calls)"
        if refused:
            reasons = "; ".join(sorted(set(refused.values())))
            line = f"no sum, the compiler refuses {', '.join(refused)}: {reasons}"
        print(f"  {target} {stage}: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="export of optimum-intel")
    parser.add_argument("--target", nargs="+", default=["3720", "4000", "5010"])
    parser.add_argument("--layers", type=int, help="of the model; those of the export by default")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prefill")
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    layers = arguments.layers or config["num_hidden_layers"]
    print(f"{arguments.folder.name}, {layers} layers; {ESTIMATE_NOTE}")
    with tempfile.TemporaryDirectory(prefix="npuw-") as folder, target_compiler() as compiler:
        work = Path(folder)
        build_plugin(work / "plugin")
        for name, properties in _CONFIGURATIONS.items():
            print(f"NPUW's configuration {name}:")
            for target in arguments.target:
                recordings = work / f"{name} {target}"
                record(
                    arguments.folder / "openvino_model.xml",
                    work / "plugin",
                    recordings,
                    {
                        "NPUW_LLM_MAX_PROMPT_LEN": arguments.prompt,
                        "NPU_PLATFORM": target,
                        **properties,
                    },
                )
                print_sums(compiler, list(read_programs(recordings)), target, layers)


if __name__ == "__main__":
    main()
