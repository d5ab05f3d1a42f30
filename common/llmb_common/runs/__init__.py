"""A run on disk: its places, its record, its own events, what is needed to repeat it."""
