"""Tokens: where they come from, and the files that keep them."""
