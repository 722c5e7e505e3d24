"""Models in folders: written by npu_compiler.export, run by npu_compiler.load without torch.

Programs that torch.compile keeps for itself are npu_compiler.programs.cache's.
"""
