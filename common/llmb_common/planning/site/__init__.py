"""The site and the machine: ``cluster_config.yaml``, and what is here."""

FILE_NAME = "cluster_config.yaml"

DEFAULT_FOLDER = "llmb_install"
"""Where the installer makes an installation if nobody says where: in the clone."""
