"""What LLMB knows of Slurm."""
