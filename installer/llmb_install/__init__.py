"""llmb-install: build and check an LLMB installation."""
