"""The machine that a command runs on: its files, processes and programs, and whose they are."""
