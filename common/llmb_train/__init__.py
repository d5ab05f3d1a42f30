"""Runs on every rank: ``python -m llmb_train job.json`` builds a Megatron-Bridge configuration and trains."""
