"""From text to structs, strictly: what is wrong is said with its file and line."""
