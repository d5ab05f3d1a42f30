"""Iteration logs -> statistics, a status and the documented tables.

Standard library only, so that the two parsers in ``common/`` run under any Python 3.10 or newer, without LLMB's
environment. ``log_files.find_runs`` finds the logs, ``runs.analyse`` reads and judges one, ``tables`` prints.
"""
