"""Why a run failed: what it left behind, read with a table of signatures, and the one line that began it.

``diagnosis`` is the door. ``signatures.yaml`` and ``xid.json`` are the knowledge; the rest reads and decides.
"""
