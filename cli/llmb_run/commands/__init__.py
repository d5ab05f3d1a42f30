"""The commands, one module each: `app` is its Typer application."""
