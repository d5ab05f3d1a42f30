"""The commands, one module each: ``command`` is its Click command, which returns a ``Result``."""
