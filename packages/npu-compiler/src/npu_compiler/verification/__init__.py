"""Compares what a program computed with what torch computes, before anybody is given the result.

What a program is compared with is in `reference`, the comparison in `comparison`, one program's
case in `program_trial`, a whole graph's in `graph_trial`.
"""
