"""Analysis of captured graphs: calls, values, ranges, origins, and text form."""
