"""What became slower or faster from some traces to others, and whether that is more than noise.

Holds no code: `samples.py` takes the values out of traces, `statistics.py` bounds their noise,
`differences.py` compares.
"""
