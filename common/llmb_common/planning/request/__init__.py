"""What the user asks for: the documented variables and how each is read."""
