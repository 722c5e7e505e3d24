"""What a command says without its packages' code: its help, scripts for shells, short answers."""
