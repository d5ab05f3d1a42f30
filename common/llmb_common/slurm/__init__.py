"""What LLMB knows about Slurm."""
