"""A trace as one page that needs no network: timeline, tables, curves of memory.

Holds no code: `timeline_data.py` chooses what is drawn, `building.py` makes the page of that and of
`view.html`, `view.css` and `view.js`, and `serving.py` offers it to a browser of this machine.
"""
