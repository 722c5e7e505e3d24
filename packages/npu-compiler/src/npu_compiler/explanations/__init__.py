"""Reports on compiled models, as text and as HTML."""
