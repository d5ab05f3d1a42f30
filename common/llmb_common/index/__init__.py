"""The index of runs: ``$LLMB_INSTALL/.llmb/index.db``, a fast copy of what the ``run.json`` files say.

``run.json`` is the truth. The index is self-healing: it is rebuilt when it is missing, damaged or of another
version, folders that changed are read again, and runs that have not ended are never taken from it alone.

``search`` asks it for runs, ``runs`` brings it in line with the folders. ``database`` also keeps what reading logs
gave, and needs no records of runs: each dry run asks it.
"""
