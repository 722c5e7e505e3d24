"""Benchmark: time to first token, speed of prefill and decode, memory and power of a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npu_command.charts import Panel, check_matplotlib, draw_bars
from npu_command.host_memory import process_memory_bytes
from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.engine.sequence import Event
from npu_llm.errors import OptionError
from npu_runtime.errors import KindError
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.generation.language_model import LanguageModel

__all__ = ["BenchRecord", "benchmark", "plot_records"]


@dataclass(frozen=True)
class BenchRecord:
    """The measurements of one combination of prompt length, answer length and batch size.

    Times are the best of the repeats.

    Attributes:
        prompt_tokens: prompt tokens per row.
        new_tokens: generated tokens per row.
        batch_size: number of rows.
        repeats: number of measured answers, of which the best counts; excludes warm-up.
        first_token_s: seconds from the call to the first token of all rows (TTFT).
        prefill_tokens_per_s: prompt tokens of all rows, divided by first_token_s.
        decode_tokens_per_s: tokens of all rows after the first, divided by their time; None for
            answers of one token.
        peak_memory_bytes: peak resident memory of this process so far, including mapped files.
        anonymous_memory_bytes: resident memory after this size, without mapped files.
        power_w: mean power during generation, in watts; None if it cannot be read.
    """

    prompt_tokens: int
    new_tokens: int
    batch_size: int
    repeats: int
    first_token_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    peak_memory_bytes: int
    anonymous_memory_bytes: int
    power_w: float | None


@public_call
def benchmark(
    model: LanguageModel,
    *,
    prompt_lengths: Sequence[int] = (32, 1024),
    new_tokens: Sequence[int] = (128,),
    batch_sizes: Sequence[int] = (1,),
    repeats: int = 3,
    warm_up: int = 1,
    meter: EnergyMeter | None = None,
    on_record: Callable[[BenchRecord], None] = lambda record: None,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> list[BenchRecord]:
    """Measures a model at each combination of sizes, greedily and without stopping at EOS.

    Args:
        model: the model to measure.
        prompt_lengths: prompt lengths in tokens; prompts are seeded random tokens.
        new_tokens: answer lengths in tokens.
        batch_sizes: numbers of rows generated together.
        repeats: answers per combination; the best one counts.
        warm_up: unmeasured answers per combination before the measured ones.
        meter: measures energy; the result of `find_meter` by default.
        on_record: called with each record once it is complete.
        on_answer: called after each answer, including warm-up, with the number of answers done and
            their total.

    Returns:
        One record per combination; prompt lengths vary fastest.

    Raises:
        OptionError: [bench-size] for a size below 1, or one that does not fit into the model's
            context.
    """
    sizes = list(product(batch_sizes, new_tokens, prompt_lengths))
    _check(model, sizes, repeats, warm_up)
    meter = find_meter() if meter is None else meter
    records: list[BenchRecord] = []
    each = warm_up + repeats
    on_answer(0, len(sizes) * each)
    for batch, new, prompt in sizes:
        record = _measure(
            model, (batch, prompt), new, repeats=repeats, warm_up=warm_up, meter=meter,
            on_answer=lambda done: on_answer(len(records) * each + done, len(sizes) * each),
        )  # fmt: skip
        records.append(record)
        on_record(record)
    return records


@public_call
def plot_records(records: Iterable[BenchRecord], *, title: str) -> str:
    """Draws time to first token and decode speed as an SVG document.

    Raises:
        OptionError: [plot-library] if matplotlib is missing.
        KindError: [argument-kind] for another record.
    """
    check_matplotlib("npu-llm", OptionError)
    first: dict[str, dict[str, float]] = {}
    speed: dict[str, dict[str, float]] = {}
    for record in records:
        if not isinstance(record, BenchRecord):  # items of iterators are not checked
            raise KindError(
                f"`records` must be BenchRecord objects, got {record!r}. Pass the result of "
                "benchmark.",
                code="argument-kind",
            )
        group = f"{record.prompt_tokens:,} + {record.new_tokens:,} tokens"
        series = f"batch {record.batch_size}"
        first.setdefault(group, {})[series] = record.first_token_s * 1e3
        if record.decode_tokens_per_s is not None:
            speed.setdefault(group, {})[series] = record.decode_tokens_per_s
    panels = [Panel("time to first token, ms", first), Panel("decode, tokens/s", speed)]
    return draw_bars([panel for panel in panels if panel.groups], title=title).svg()


def _check(model: Any, sizes: Sequence[tuple[int, int, int]], repeats: int, warm_up: int) -> None:
    bound = model.context_length
    for batch, new, prompt in sizes:
        if min(batch, new, prompt, repeats) < 1 or warm_up < 0:
            raise OptionError(
                "benchmark: lengths, batch sizes and repeats must be at least 1, and warm_up at "
                f"least 0, got prompt {prompt}, new tokens {new}, batch {batch}, repeats "
                f"{repeats}, warm_up {warm_up}. Raise the smaller ones.",
                code="bench-size",
            )
        if bound is not None and prompt + new > bound:
            raise OptionError(
                f"benchmark: prompt and answer must fit into the context of {bound:,} tokens, got "
                f"{prompt:,} + {new:,}. Measure shorter ones.",
                code="bench-size",
            )


def _measure(
    model: Any,
    shape: tuple[int, int],
    new_tokens: int,
    *,
    repeats: int,
    warm_up: int,
    meter: EnergyMeter,
    on_answer: Callable[[int], None],
) -> BenchRecord:
    batch, prompt = shape
    ids = torch.randint(model.vocabulary, shape, generator=torch.Generator().manual_seed(0))
    for done in range(warm_up):
        _answer_times(model, ids, new_tokens)
        on_answer(done + 1)
    first_s, rest_s = float("inf"), float("inf")
    started, energy = time.perf_counter(), meter.read_joules()
    for done in range(warm_up, warm_up + repeats):
        first, rest = _answer_times(model, ids, new_tokens)
        first_s, rest_s = min(first_s, first), min(rest_s, rest)
        on_answer(done + 1)
    power = meter.mean_watts(energy, time.perf_counter() - started)
    peak, anonymous = process_memory_bytes()
    return BenchRecord(
        prompt_tokens=prompt,
        new_tokens=new_tokens,
        batch_size=batch,
        repeats=repeats,
        first_token_s=first_s,
        prefill_tokens_per_s=batch * prompt / first_s,
        decode_tokens_per_s=batch * (new_tokens - 1) / rest_s if new_tokens > 1 else None,
        peak_memory_bytes=peak,
        anonymous_memory_bytes=anonymous,
        power_w=power,
    )


def _answer_times(model: Any, ids: torch.Tensor, new_tokens: int) -> tuple[float, float]:
    """Returns the seconds to the first token of all rows, and from there to the last token."""
    batch = len(ids)
    if batch > 1 and model.block_pool is None:
        return _batch_times(model, ids, new_tokens)
    options = EngineOptions(
        max_num_batched_tokens=None, max_num_seqs=batch, is_sequential=batch == 1,
        cache_bytes=1 << 62,
    )  # fmt: skip
    engine = Engine(model, options)
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0)
    times: list[list[float]] = [[] for _ in range(batch)]

    def note(row: int, event: Event) -> None:
        if isinstance(event, Token):
            times[row].append(time.perf_counter())
        elif event.error is not None:
            raise event.error

    prompts = ids.tolist()
    started = time.perf_counter()
    for row, prompt in enumerate(prompts):
        engine.submit(prompt, params, partial(note, row))
    while engine.step():
        pass
    engine.store.clear()
    first = max(one[0] for one in times)
    return first - started, max(one[-1] for one in times) - first


def _batch_times(model: Any, ids: torch.Tensor, new_tokens: int) -> tuple[float, float]:
    """Measures a batch in one OpenVINO program: an answer of one token, then a whole answer."""
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    started = time.perf_counter()
    model.generate(**inputs, max_new_tokens=1, **options)
    first = time.perf_counter() - started
    if new_tokens == 1:
        return first, 0.0
    started = time.perf_counter()
    model.generate(**inputs, max_new_tokens=new_tokens, **options)
    return first, max(time.perf_counter() - started - first, 1e-9)


_POWERCAP = Path("/sys/class/powercap")
_HWMON = Path("/sys/class/hwmon")
_NPU_DRIVERS = ("intel_vpu", "npu")


@dataclass(frozen=True)
class EnergyMeter:
    """Energy counters.

    Attributes:
        name: name of the counted domain, such as "package-0"; empty without counters.
        counters: files with microjoules since an arbitrary start.
        wrap_joules: value at which the sum of the counters wraps around to 0; 0 if unknown.
        reason: reason that energy cannot be read; empty if it can.
    """

    name: str
    counters: tuple[Path, ...] = ()
    wrap_joules: float = 0.0
    reason: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether energy can be read."""
        return bool(self.counters)

    def read_joules(self) -> float | None:
        """Returns the sum of the counters; None if there are none, or if one has disappeared."""
        try:
            values = [int(counter.read_text()) for counter in self.counters]
        except (OSError, ValueError):
            return None
        return sum(values) / 1e6 if values else None

    def mean_watts(self, before_joules: float | None, duration_s: float) -> float | None:
        """Returns the mean power in watts since `before_joules` was read, `duration_s` ago."""
        after = self.read_joules()
        if before_joules is None or after is None or duration_s <= 0:
            return None
        used = after - before_joules
        if used < 0:
            used += self.wrap_joules
        return used / duration_s if used >= 0 else None


def find_meter(*, powercap: Path = _POWERCAP, hwmon: Path = _HWMON) -> EnergyMeter:
    """Finds an NPU's energy counter, or else those of the processor packages.

    Args:
        powercap: directory in which Linux lists RAPL zones.
        hwmon: directory in which Linux lists sensors.
    """
    npu = [
        counter
        for sensor in sorted(hwmon.glob("hwmon*"))
        if _text(sensor / "name") in _NPU_DRIVERS
        for counter in sorted(sensor.glob("energy*_input"))
    ]
    if npu and all(map(_text, npu)):
        return EnergyMeter("NPU", tuple(npu))
    zones = [zone for zone in sorted(powercap.glob("*:*")) if zone.name.count(":") == 1]
    packages = {zone: _text(zone / "name") for zone in zones}
    chosen = [zone for zone, name in packages.items() if name.startswith("package")]
    if not chosen:
        return EnergyMeter("", reason=f"no energy counter in {powercap} or {hwmon}")
    counters = tuple(zone / "energy_uj" for zone in chosen)
    if not all(map(_text, counters)):
        return EnergyMeter("", reason=f"only root may read {counters[0]}")
    ranges = [_text(zone / "max_energy_range_uj") for zone in chosen]
    wrap = sum(int(one) for one in ranges) / 1e6 if all(map(str.isdigit, ranges)) else 0.0
    return EnergyMeter(" and ".join(packages[zone] for zone in chosen), counters, wrap)


def _text(file: Path) -> str:
    """Returns the contents of a kernel file; empty if it is missing or may not be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
