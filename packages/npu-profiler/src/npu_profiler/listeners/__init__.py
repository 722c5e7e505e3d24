"""Event sources of a recording: devices, torch modules, steps, threads, memory."""
