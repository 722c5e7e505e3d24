"""Kernel programs: a fixed list of host kernels for the rows of any number of sequences.

`instructions` says what a program can do, `program` what one is, `rows` what a step runs on,
`weights` and `weight_file` how its weights lie in memory and on disk; `execution` runs it, and
`reference` does the same in torch.
"""
