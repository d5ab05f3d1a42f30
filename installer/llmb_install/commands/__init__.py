"""What each command of the installer does."""
