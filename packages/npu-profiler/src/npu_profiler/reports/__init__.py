"""Reports of a trace: tables, charts, records and a page."""
