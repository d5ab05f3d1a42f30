"""What a run's nodes said of themselves, and what contradicts a good result."""
