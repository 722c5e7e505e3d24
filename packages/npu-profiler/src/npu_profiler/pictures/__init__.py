"""Pictures of what a trace says or a sweep measured; nothing is drawn by others.

Holds no code: `memory_picture.py` draws curves of memory, `roof.py` rooflines and `bars.py` sweeps;
`picture.py` has the shapes and `picture_file.py` writes files.
"""
