"""The ways of running jobs, one folder each. ``docs/architecture.md`` says how to add one.

Whoever asks for traits imports this package, and every help text does: what executors are is in ``base``.
"""
