"""A seeded mix of everything a program does to the device, by threads with separate streams.

Each thread follows a separate program that only its seed determines, so that the digest of its
results does not depend on timing: one thread on one stream gives the same. Who runs this, and
compares, is test_load.py; soak.py runs it until the time is over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops

import npu_runtime
from npu_runtime import _C, sim

SHAPE = (64,)
SLOTS = 8
PRIME = 4093
OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Load:
    """What to run.

    Attributes:
        threads: Number of threads.
        streams: Streams of each thread; 0 puts everything on the default stream.
        operations: Operations of each thread.
        seed: Decides every thread's program.
        leave_out: Number of the hand-over of the first thread that lacks its wait; -1 for none.
    """

    threads: int = 8
    streams: int = 4
    operations: int = 1000
    seed: int = 1
    leave_out: int = -1


@dataclass(frozen=True)
class Programs:
    """The compiled programs that all threads share: 5 x + 3, 3 x + y, and a running sum.

    All modulo a prime: a value that was wrong once stays wrong, and float32 holds every step.
    """

    step: npu_runtime.Program
    blend: npu_runtime.Program
    total: npu_runtime.Program

    @classmethod
    def load(cls, folder: Path) -> Programs:
        """Compiles them for the device."""
        x, y = (ops.parameter(SHAPE, np.float32, name=name) for name in "xy")
        start = ops.constant(np.zeros(SHAPE, np.float32))
        state = ops.read_value(start, "sum", ov.Type.f32, ov.PartialShape(SHAPE))
        added = _modulo(ops.add(state, x))
        models = {
            "step": ov.Model([_modulo(ops.add(_times(x, 5), _constant(3)))], [x], "step"),
            "blend": ov.Model([_modulo(ops.add(_times(x, 3), y))], [x, y], "blend"),
            "total": ov.Model([ops.result(added)], [ops.assign(added, "sum")], [x], "total"),
        }
        loaded = {}
        for name, model in models.items():
            path = folder / f"{name}.xml"
            ov.save_model(model, path, compress_to_fp16=False)
            loaded[name] = npu_runtime.load_program(path, name=name, options=OPTIONS)
        return cls(**loaded)


def _constant(value: float) -> ov.Node:
    return ops.constant(np.float32(value))


def _times(x: ov.Node, factor: float) -> ov.Node:
    return ops.multiply(x, _constant(factor))


def _modulo(x: ov.Node) -> ov.Node:
    return ops.floor_mod(x, _constant(PRIME))


@dataclass
class Slot:
    """A tensor, and the streams that a program on another one has to wait for."""

    tensor: torch.Tensor
    writer: torch.Stream
    readers: set[torch.Stream] = field(default_factory=set)


class Worker:
    """One thread's program."""

    def __init__(self, load: Load, number: int, programs: Programs, graveyard: queue.Queue) -> None:
        self.random = random.Random(load.seed * 1000 + number)
        self.wait_random = random.Random(number)  # apart: how many waits there are is no result
        self.programs = programs
        self.graveyard = graveyard  # tensors that another thread frees
        self.streams = [torch.npu.Stream() for _ in range(load.streams)] or [
            torch.npu.default_stream()
        ] * 4
        self.leave_out = load.leave_out if number == 0 else -1
        self.hand_overs = 0
        self.digest = 0
        self.session = programs.total.session()
        self.matrix = torch.eye(8, device="npu").roll(1, 0)
        self.slots = [
            Slot(torch.arange(SHAPE[0], device="npu") * 60.0 + index, self.streams[0])
            for index in range(SLOTS)
        ]
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.run_step, 24),
            (self.run_blend, 12),
            (self.run_into, 8),
            (self.run_session, 4),
            (self.hand_over, 6),
            (self.copy, 10),
            (self.compute, 12),
            (self.fall_back, 8),
            (self.allocate, 10),
            (self.use_events, 6),
            (self.record_stream, 4),
            (self.read, 8),
        ]
        self.choices = [choice for choice, weight in weighted for _ in range(weight)]

    def run(self, operations: int) -> None:
        for _ in range(operations):
            self.random.choice(self.choices)()

    def finish(self) -> int:
        for slot in self.slots:
            self.note(slot.tensor)
        return self.digest

    # ------------------------------------------------------------------------------- operations

    def run_step(self) -> None:
        source, target, stream = self.pick(), self.pick_index(), self.pick_stream()
        self.wait_for(stream, source)
        with torch.npu.stream(stream):
            self.slots[target] = Slot(self.programs.step.run([source.tensor])[0], stream)

    def run_blend(self) -> None:
        first, second, target = self.pick(), self.pick(), self.pick_index()
        stream = self.pick_stream()
        self.wait_for(stream, first, second)
        with torch.npu.stream(stream):
            result = self.programs.blend.run([first.tensor, second.tensor])[0]
        self.slots[target] = Slot(result, stream)

    def run_into(self) -> None:
        """A program writes into memory that others may still read."""
        source, target, stream = self.pick(), self.pick(), self.pick_stream()
        if source.tensor.data_ptr() == target.tensor.data_ptr():
            return
        self.wait_for(stream, source)
        for other in target.readers | {target.writer}:
            self.wait(stream, other)
        with torch.npu.stream(stream):
            self.programs.step.run([source.tensor], outputs=[target.tensor])
        target.writer, target.readers = stream, set()

    def run_session(self) -> None:
        source, target, stream = self.pick(), self.pick_index(), self.pick_stream()
        self.wait_for(stream, source)
        with torch.npu.stream(stream):
            self.slots[target] = Slot(self.session.run([source.tensor])[0], stream)

    def hand_over(self) -> None:
        """One stream writes, another reads, the host looks: the wait may be left out on purpose."""
        source, target = self.pick(), self.pick_index()
        first, second = self.random.sample(range(4), 2)
        writer, reader = self.streams[first], self.streams[second]
        is_broken = self.hand_overs == self.leave_out
        self.hand_overs += 1
        self.wait_for(writer, source)
        if is_broken:
            writer.synchronize()
            _C.sim_set_delay(60_000, 60_000, 0)
        with torch.npu.stream(writer):
            between = self.programs.step.run([source.tensor])[0]
        if is_broken:
            time.sleep(0.01)  # the writer has begun, and now takes its time
            _C.sim_set_delay(0, 0, 0)  # and the reader, without a wait, does not
        else:
            self.wait(reader, writer)
        with torch.npu.stream(reader):
            self.slots[target] = Slot(self.programs.step.run([between])[0], reader)
        self.note(self.slots[target].tensor)

    def copy(self) -> None:
        source, target, way = self.pick(), self.pick_index(), self.random.randrange(4)
        if way == 0:
            copied = source.tensor.clone()
        elif way == 1:
            copied = source.tensor.cpu().to("npu")
        elif way == 2:
            copied = source.tensor.to(torch.float64).to(torch.float32)
        else:
            self.slots[target].tensor.copy_(source.tensor)
            return
        self.slots[target] = Slot(copied, self.streams[0])

    def compute(self) -> None:
        source, target = self.pick(), self.pick_index()
        if self.random.random() < 0.5:
            self.slots[target].tensor.mul_(2).add_(source.tensor).remainder_(PRIME)
        else:
            result = torch.where(source.tensor > 99, source.tensor - 99, source.tensor + 7)
            self.slots[target] = Slot(result, self.streams[0])

    def fall_back(self) -> None:
        source, target = self.pick(), self.pick_index()
        way = self.random.randrange(3)
        if way == 0:
            result = (source.tensor.view(8, 8) @ self.matrix).view(SHAPE)
        elif way == 1:
            result = torch.sort(source.tensor.flip(0)).values
        else:
            result = source.tensor.view(8, 8).cumsum(0).remainder(PRIME).reshape(SHAPE)
        self.slots[target] = Slot(result, self.streams[0])

    def allocate(self) -> None:
        size = self.random.choice((1, 30, 700, 5000, 40_000))
        self.graveyard.put(torch.full((size,), 7.0, device="npu"))
        if self.random.random() < 0.7:
            with contextlib.suppress(queue.Empty):
                self.graveyard.get_nowait()
        if self.random.random() < 0.005:
            torch.npu.empty_cache()

    def use_events(self) -> None:
        first, second = self.pick_stream(), self.pick_stream()
        event = torch.npu.Event(enable_timing=True)
        event.record(first)
        if self.random.random() < 0.5:
            second.wait_event(event)
        if self.random.random() < 0.2:
            event.synchronize()
            assert event.query()

    def record_stream(self) -> None:
        self.pick().tensor.record_stream(self.pick_stream())

    def read(self) -> None:
        slot = self.pick()
        way = self.random.randrange(3)
        if way == 0:
            self.note(slot.tensor)
        elif way == 1:
            self.digest = zlib.crc32(np.float64(slot.tensor[5].item()).tobytes(), self.digest)
        else:
            self.note(torch.from_dlpack(slot.tensor[16:32]))

    # ------------------------------------------------------------------------------------ parts

    def pick(self) -> Slot:
        return self.slots[self.pick_index()]

    def pick_index(self) -> int:
        return self.random.randrange(SLOTS)

    def pick_stream(self) -> torch.Stream:
        return self.streams[self.random.randrange(4)]

    def note(self, tensor: torch.Tensor) -> None:
        self.digest = zlib.crc32(tensor.cpu().numpy().tobytes(), self.digest)

    def wait_for(self, stream: torch.Stream, *slots: Slot) -> None:
        """Orders a program on the stream after the writer of the slots."""
        for slot in slots:
            self.wait(stream, slot.writer)
            slot.readers.add(stream)

    def wait(self, stream: torch.Stream, other: torch.Stream) -> None:
        if stream == other:
            return
        way = self.wait_random.random()
        if way < 0.5:
            stream.wait_stream(other)
        elif way < 0.9:
            stream.wait_event(other.record_event())
        else:
            other.synchronize()


def run_load(load: Load, programs: Programs) -> list[int]:
    """Runs it; returns each thread's digest. Raises the first error of a thread."""
    graveyard: queue.Queue = queue.Queue()
    digests = [0] * load.threads
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            worker = Worker(load, number, programs, graveyard)
            worker.run(load.operations)
            digests[number] = worker.finish()
        except BaseException as error:  # noqa: BLE001 - raised again below, on the main thread
            errors.append(error)

    if load.streams == 0:
        for number in range(load.threads):
            work(number)
    else:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(load.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    torch.npu.synchronize()
    return digests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in vars(Load()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--delay-us", type=int, default=0, help="longest random delay of work")
    arguments = vars(parser.parse_args())
    delay_us = arguments.pop("delay_us")
    load = Load(**arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs.load(Path(folder))
        start_s = time.perf_counter()
        with sim.delay(0, delay_us, seed=load.seed):
            digests = run_load(load, programs)
        seconds = time.perf_counter() - start_s
    json.dump({"digests": digests, "seconds": round(seconds, 2)}, sys.stdout)


if __name__ == "__main__":
    main()
