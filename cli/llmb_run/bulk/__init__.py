"""Task files: what ``llmb-run bulk`` reads.

Two forms, told apart by their content. YAML (``tasks_yaml``) has defaults, sweeps and overrides; the short text form
(``tasks_text``) has a header per workload and one line per task.
"""
