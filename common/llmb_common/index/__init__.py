"""The index of runs: ``$LLMB_INSTALL/.llmb/index.db``, a fast copy of what the ``run.json`` files say.

``run.json`` is the truth. The index is self-healing: it is rebuilt when it is missing, damaged or of another
version, folders that changed are read again, and runs that have not ended are never taken from it alone.

::

    search.find_runs(install, RunFilter(...)) -> [RunRow]   newest first, without opening run.json files of ended runs
    search.find_run(install, word)            -> RunRow     by run id (or its beginning), name, job id or folder
    search.note(record)                                     after each change of a record; a failure is harmless
    search.rebuild(install)                   -> int        from the folders
    figures.kept_figures(install, logs), keep_figures(...)  what reading logs gave: read once
    figures.past_figures(install, stamp)                    of the runs that say how fast a configuration is here
    figures.past_times(install, workload, model_size)       the same of one model, times and power only
    figures.past_memory(install, key)                       what memory runs had, over what was predicted

``figures`` needs no records of runs: each dry run asks it.
"""
