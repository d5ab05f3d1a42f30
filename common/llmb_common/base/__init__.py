"""What a job can run on: types of GPUs, releases of the training engine, ways of running jobs."""
