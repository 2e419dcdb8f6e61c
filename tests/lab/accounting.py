"""slurmdbd and its MariaDB, in the head box of a cluster: they begin empty, and end with it."""

from __future__ import annotations

from pathlib import Path

from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.images import apt
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs

_DATA = "/var/lib/slurm-mysql"
_SOCKET = "/run/mysqld/mysqld.sock"
_MARIADBD = (
    f"mariadbd --no-defaults --user=mysql --datadir={_DATA} --socket={_SOCKET} --skip-networking --skip-log-bin "
    "--performance-schema=off --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync --innodb-doublewrite=0 "
    "--innodb-use-native-aio=0 --innodb-buffer-pool-size=16M --innodb-log-file-size=8M --key-buffer-size=1M "
    "--innodb-lock-wait-timeout=900"
)
_LAYER = f"""set -e
cat >/tmp/apt.conf <<'END'
{{settings}}
END
echo 'deb {{mirror}} {{suite}} main' >/tmp/sources.list
export APT_CONFIG=/tmp/apt.conf DEBIAN_FRONTEND=noninteractive
get() {{{{ apt-get -q -o Dir::Etc::sourcelist=/tmp/sources.list -o APT::Sandbox::User=root "$@"; }}}}
get update
get install -y --no-install-recommends slurmdbd mariadb-server-core mariadb-client-core
get clean
rm -rf /tmp/* /var/lib/apt/lists/*
useradd -r mysql
mkdir -p /run/mysqld
chown mysql /run/mysqld
mariadb-install-db --no-defaults --user=mysql --datadir={_DATA} --skip-test-db --auth-root-authentication-method=socket
{_MARIADBD} --bootstrap <<'END'
flush privileges;
create database slurm_acct_db;
create user slurm@localhost identified via unix_socket;
grant all on slurm_acct_db.* to slurm@localhost;
END
"""
_SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=head
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmctld/slurmdbd.pid
"""
SLURM_CONF = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
"""
FILES = (BoxFile("/etc/slurm/slurmdbd.conf", _SLURMDBD_CONF, 0o600, "slurm:slurm"),)
_START_DATABASE = (
    f"mkdir -p /run/mysqld; chown mysql /run/mysqld; setsid {_MARIADBD} >/var/log/mariadb.log 2>&1 & "
    f"until [ -S {_SOCKET} ]; do sleep 0.05; done"
)
START_SLURMDBD = ["sh", "-c", "slurmdbd && until sacctmgr -n show cluster; do sleep 0.05; done"]
SETUP = (["sh", "-c", _START_DATABASE], START_SLURMDBD)
"""Commands of the head before slurmctld starts."""


def accounting_layer(rootfs: Rootfs) -> Path:
    """A layer with slurmdbd, MariaDB and an empty database. Raises SandboxError where it cannot be had."""
    script = _LAYER.format(settings="\n".join(apt.settings()), mirror=apt.mirror(), suite=rootfs.suite)
    return ensure_layer(rootfs, f"accounting {_LAYER}", ["sh", "-c", script])
