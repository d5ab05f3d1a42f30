"""From arguments and task files to submitted runs."""
