"""Pictures of what a trace says, as charts of matplotlib.

Holds no code: `memory_picture.py` draws curves of memory, `roof.py` rooflines, and
`picture_file.py` writes files.
"""
