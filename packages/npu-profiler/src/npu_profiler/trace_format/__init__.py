"""What a trace is made of, on which row it stands, and how it is written as Chrome trace JSON."""
