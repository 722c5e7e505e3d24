"""Compares what a program computed with what torch computes, before anybody is given the result."""
