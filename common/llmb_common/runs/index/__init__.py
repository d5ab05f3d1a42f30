"""The index of runs: ``$LLMB_INSTALL/.llmb/index.db``, a fast copy of what the ``run.json`` files and the logs say.

The run folders are the truth, and are listed whenever somebody asks. A run that is new, or had not ended, is read
again; a file that cannot be read is built anew from the folders, beside the old one.

``search`` asks it for runs, ``runs`` brings it in line with the folders, ``roots`` says where these are. ``database``
has the file, and what was read from logs; it needs no records of runs: each dry run asks it.
"""
