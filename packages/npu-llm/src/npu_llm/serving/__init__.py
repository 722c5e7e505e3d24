"""HTTP server for models, with continuous batching of requests."""
