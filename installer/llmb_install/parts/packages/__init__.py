"""Where packages come from: the index, uv, and a Python that fits."""
