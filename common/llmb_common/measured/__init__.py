"""Runs as they were measured: logs read once and kept, figures, the verdict, the cause."""
