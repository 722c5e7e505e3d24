"""Bucketing: runs graphs with dynamic sizes as static programs, one per bucket of sizes."""

from npu_compiler.buckets.graph import BucketedGraph
from npu_compiler.buckets.sizes import wants_static_programs

__all__ = ["BucketedGraph", "wants_static_programs"]
