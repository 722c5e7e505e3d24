"""Who hears what while a recording runs: devices, torch modules, steps, threads, memory."""
