"""What a command says of itself without running: its help, and scripts for shells."""
