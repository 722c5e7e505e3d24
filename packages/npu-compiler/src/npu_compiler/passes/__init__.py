"""Rewrites of captured graphs, one file each; npu_compiler.pipeline lists them in order."""
