"""Rewrites of captured graphs; npu_compiler.passes.pipeline lists them in order."""
