"""Measures how fast a model is, and how much power it draws."""

from npu_llm.bench.measuring import (
    BenchRecord,
    benchmark,
    plot_records,
    process_memory_bytes,
)

__all__ = ["BenchRecord", "benchmark", "plot_records", "process_memory_bytes"]
