"""Environments: the tool's own and those of the training engines."""
