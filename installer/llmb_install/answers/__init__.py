"""The questions, the answers, and whether the answers are valid."""
