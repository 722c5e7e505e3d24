"""Rows under named columns, and how they look on a screen, in JSON and in CSV."""

from npu_profiler.reports.tables.model import Column, Table
from npu_profiler.reports.tables.text import format_bytes, format_ms, format_table

__all__ = ["Column", "Table", "format_bytes", "format_ms", "format_table"]
