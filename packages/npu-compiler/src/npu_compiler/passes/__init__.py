"""Rewrites of captured graphs, one file each; npu_compiler.passes.pipeline lists them in order."""
