"""Figures of a run and what they are worth."""
