"""Pictures of what a trace says, as SVG or as a page around one; nothing is drawn by others.

Holds no code: `memory_picture.py` draws curves of memory, `picture_file.py` writes files.
"""
