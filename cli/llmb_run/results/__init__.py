"""Measured runs: tables, archives."""
