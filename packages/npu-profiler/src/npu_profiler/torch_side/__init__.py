"""Records of torch's own profiler: windows, export files, clock alignment."""
