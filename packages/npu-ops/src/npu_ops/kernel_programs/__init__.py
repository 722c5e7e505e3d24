"""Kernel programs: a fused decoder runtime that runs CPU kernels on the tokens of any sequences.

`program` defines instructions, programs and the rows of a step. `weights` and `packed` have the
layout of weights in memory and on disk, `execution` runs programs, and `reference` does the same in
torch.
"""
