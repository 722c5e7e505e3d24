"""A trace as a self-contained HTML page: timeline, tables, memory charts."""
