"""The site and the machine: ``cluster_config.yaml``, and what is here."""

FILE_NAME = "cluster_config.yaml"
