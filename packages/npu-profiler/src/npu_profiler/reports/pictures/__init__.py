"""Pictures of what a trace says, as charts of matplotlib."""
