"""Pictures of npu-profiler: shapes drawn by our own code, as SVG, PNG or a page.

Holds no code: shapes and files are in `picture.py`, what is drawn with them in `bars.py` (sweeps),
`roof.py` (rooflines) and `rows.py` (timelines). No plotting library is needed; a PNG needs Pillow.
"""
