"""The site and the machine: ``cluster_config.yaml``, and what is here."""
