"""How the installer works: its lock, steps, child processes, output."""
