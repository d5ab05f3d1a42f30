"""The health of nodes: asked in one short job, judged by one table of checks, before a job is to run there."""
