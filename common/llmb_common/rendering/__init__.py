"""JobPlan to text: the batch script and job.json."""
