"""Kernel programs: a fixed list of host kernels for the rows of any number of sequences.

`instructions` says what a program can do, `program` what one is, `weights` how its weights lie in
memory, `blocks` how keys and values do, `execution` runs it, and `reference` does the same in torch.
"""
