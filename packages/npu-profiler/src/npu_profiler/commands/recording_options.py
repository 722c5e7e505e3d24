"""Shared options of the recording commands."""

import argparse

from npu_profiler.recording.recorder import TraceOptions

__all__ = ["VIEWER", "add_recording_options", "recording_options"]

DEFAULT_OUTPUT = "trace.json"
VIEWER = "https://ui.perfetto.dev"


def recording_options(arguments: argparse.Namespace, program: str) -> TraceOptions:
    """Returns the recording options of the arguments, for a process of this name."""
    return TraceOptions(
        stacks=arguments.stacks,
        modules=arguments.modules,
        layers=arguments.layers,
        layers_first=arguments.layers_first,
        layers_every=arguments.layers_every,
        memory=arguments.memory,
        program=program,
    )


def add_recording_options(command: argparse.ArgumentParser) -> None:
    """Adds the options for the contents and the file of a recording."""
    defaults = TraceOptions()
    command.add_argument(
        "-o",
        "--output",
        default=DEFAULT_OUTPUT,
        metavar="FILE",
        help="output file; .json.gz compresses (default: %(default)s)",
    )
    command.add_argument(
        "--layers",
        action="store_true",
        help="record the device's layers of some runs of each program",
    )
    command.add_argument(
        "--layers-first",
        type=int,
        default=defaults.layers_first,
        metavar="N",
        help="record layers of each program's first N runs (default: %(default)s)",
    )
    command.add_argument(
        "--layers-every",
        type=int,
        default=defaults.layers_every,
        metavar="K",
        help="and of every Kth later run, 0 for none (default: %(default)s)",
    )
    command.add_argument(
        "--memory", action="store_true", help="record memory of the process over time"
    )
    command.add_argument(
        "--modules",
        action="store_true",
        help="record calls of torch modules, with their paths in the model",
    )
    command.add_argument(
        "--stacks", action="store_true", help="also record Python calls; several times slower"
    )
