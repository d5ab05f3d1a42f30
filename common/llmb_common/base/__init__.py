"""What everything else stands on: errors, words, files, processes; tables of GPUs, engines and ways of running jobs."""
