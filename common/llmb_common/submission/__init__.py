"""From plans to started runs: crash-safe, one, many, as arrays, in chains."""
