"""Which tokens of which requests a step reads, and the thread that runs the steps."""
