"""LLMB's library: recipes, plans, scripts, executors, runs and results."""

__version__ = "0.3.0"
