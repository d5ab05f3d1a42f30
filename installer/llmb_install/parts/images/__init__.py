"""Container images, imported with Enroot and checked."""
