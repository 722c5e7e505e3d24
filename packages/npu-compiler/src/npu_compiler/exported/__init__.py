"""Models in folders: written by npu_compiler.export, run by npu_compiler.load without torch."""
