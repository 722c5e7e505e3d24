"""Whether the results of two runs of a call agree."""
