"""Exported models: folders of npu_compiler.export, which npu_compiler.load runs without torch."""
