"""Checks of a site and of an installation."""
