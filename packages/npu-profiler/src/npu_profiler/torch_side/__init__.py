"""What torch's own profiler records, and how it is read and placed on our clock."""
