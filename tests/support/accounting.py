"""MariaDB and slurmdbd for a test cluster, with the accounts and QOS that the tests use."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence

from support.processes import Daemons, wait_until
from support.slurm_config import Layout, slurmdbd_conf

ACCOUNTS = ("bench", "other")
_COMMANDS = (
    "add qos low priority=1",
    "add qos high priority=100 preempt=low",
    "add qos debug MaxWall=00:10:00 MaxTRESPerUser=node=2 Flags=DenyOnLimit",
)


class Accounting:
    """The accounting half of a cluster: a private database and slurmdbd."""

    def __init__(self, layout: Layout, daemons: Daemons, env: Mapping[str, str]) -> None:
        self._layout = layout
        self._daemons = daemons
        self._env = env
        self._data = layout.root / "database"
        # Not in the database's folder: MariaDB would take every folder there for a database.
        self._socket = layout.root / "run" / "database.sock"
        # A starting MariaDB deletes the temporary tables of all others that share its temporary folder.
        self._scratch = layout.root / "database-tmp"

    def start(self) -> None:
        """Create the database, start it and slurmdbd."""
        self._scratch.mkdir()
        self._client(
            "mariadb-install-db", "--no-defaults", f"--user={self._layout.user}", f"--datadir={self._data}",
            "--auth-root-authentication-method=normal", "--skip-test-db", f"--tmpdir={self._scratch}",
        )  # fmt: skip
        argv = ["mariadbd", "--no-defaults", f"--user={self._layout.user}", f"--datadir={self._data}"]
        argv += [
            f"--tmpdir={self._scratch}",
            f"--socket={self._socket}",
            f"--pid-file={self._layout.root}/run/database.pid",
        ]
        argv += ["--bind-address=127.0.0.1", f"--port={self._layout.database_port}"]
        # Small and without durability: nobody needs this database after a crash.
        argv += ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=64M", "--innodb-lock-wait-timeout=900"]
        argv += ["--innodb-flush-log-at-trx-commit=0", "--skip-log-bin", "--performance-schema=OFF"]
        self._daemons.start("mariadbd", argv, self._env)
        self._daemons.wait_until(self._database_answers, "MariaDB", timeout=60)
        password = secrets.token_hex(8)
        users = ("'slurm'@'127.0.0.1'", "'slurm'@'localhost'")
        sql = "CREATE DATABASE slurm_acct_db;"
        for user in users:
            sql += f"CREATE USER {user} IDENTIFIED BY '{password}'; GRANT ALL ON slurm_acct_db.* TO {user};"
        self._client("mariadb", "--no-defaults", f"--socket={self._socket}", "-uroot", stdin=sql)
        conf = self._layout.root / "etc" / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(slurmdbd_conf(self._layout, password))
        self.start_daemon()

    def start_daemon(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self._daemons.start("slurmdbd", ["slurmdbd", "-D"], self._env)
        self._daemons.wait_until(self._answers, "slurmdbd", timeout=60)

    def register(self, cluster: str) -> None:
        """Create accounts and QOS, and wait until the controller has them."""
        wait_until(lambda: cluster in self._sacctmgr("-n", "-P", "show", "cluster"), "the cluster's row", timeout=30)
        user = self._layout.user
        commands = [*_COMMANDS]
        for account in ACCOUNTS:
            commands.append(f"add account {account} description={account} organization=test")
            commands.append(f"modify account {account} set qos=normal,low,high,debug")
            commands.append(f"add user {user} account={account}")
        for command in commands:
            self._sacctmgr("-i", "-Q", *command.split())
        wait_until(self._controller_knows_accounts, "accounts in slurmctld", timeout=30)

    def _controller_knows_accounts(self) -> bool:
        shown = self._client("scontrol", "show", "assoc_mgr", "flags=assoc", check=False)
        return all(f"Account={account} UserName={self._layout.user}(" in shown for account in ACCOUNTS)

    def _sacctmgr(self, *args: str) -> str:
        return self._client("sacctmgr", *args)

    def _answers(self) -> bool:
        return bool(self._client("sacctmgr", "-n", "-P", "show", "qos", "format=name", check=False).strip())

    def _database_answers(self) -> bool:
        shown = self._client(
            "mariadb-admin", "--no-defaults", f"--socket={self._socket}", "-uroot", "ping", check=False
        )
        return "is alive" in shown

    def _client(self, *argv: str, stdin: str = "", check: bool = True) -> str:
        done = _run(argv, self._env, stdin)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def _run(argv: Sequence[str], env: Mapping[str, str], stdin: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=dict(env), input=stdin, capture_output=True, text=True, timeout=600, check=False)
