"""llmb-run: submit, follow and judge benchmark runs."""
