"""Runs as they go on: progress, log lines, the live view."""
