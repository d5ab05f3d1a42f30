"""Whether processes of this machine reach each other by 127.0.0.1, as the ranks of a job do, also a single one.

Standard library only: the installer's first stage asks before it makes an engine.
"""

from __future__ import annotations

import socket

from llmb_common.errors import EnvironmentLacks


def loopback_problem() -> EnvironmentLacks | None:
    """What to say where they do not, as in a network namespace whose ``lo`` nobody has brought up: there a job would
    try for minutes."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return EnvironmentLacks(
            f"training processes cannot reach each other: 127.0.0.1: {error.strerror or error}",
            remedy="bring the loopback interface up: ip link set lo up (as root of this network namespace)",
        )
    return None
