"""A trace as one page that needs no network: timeline, tables, curves of memory."""
