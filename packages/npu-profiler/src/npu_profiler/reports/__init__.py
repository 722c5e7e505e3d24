"""What people read of a trace: tables, pictures, records and a page."""
