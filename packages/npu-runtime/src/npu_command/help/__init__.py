"""Options of every subcommand, and completion scripts for shells."""
