"""``llmb-run ab``: two configurations, run in turns on the same nodes until it is clear which is faster."""
