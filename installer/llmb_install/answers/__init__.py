"""What is asked, what was answered, and whether it can be."""
