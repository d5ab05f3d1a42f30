"""What the commands do: a module for each module of ``llmb_run.commands``, imported when one of them is called."""
