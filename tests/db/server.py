"""A private PostgreSQL, for as long as a test or a benchmark needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.reach import let_others_in


def find_initdb() -> Path | None:
    """The newest that is installed; None: there is none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = str(folders[-1] / "initdb") if folders else shutil.which("initdb")
    return Path(found) if found else None


@contextmanager
def private_server(initdb: Path, data: Path, networks: str = "") -> Iterator[None]:
    """A server with its data and its socket in this empty folder; its administrator is ``burstd``.

    ``networks``: from there too it is reached by TCP, at every address of the network namespace that it starts in.
    """
    # initdb refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(data, user)
        let_others_in(data.parent)

    def quietly(*command: str | Path) -> None:
        subprocess.run(command, user=user, cwd=data, check=True, capture_output=True)

    quietly(initdb, "-D", data / "d", "-U", "burstd", "-A", "trust", "--no-sync")
    if networks:
        with (data / "d" / "pg_hba.conf").open("a", encoding="ascii") as rules:
            rules.write(f"host all all {networks} trust\n")
    control = initdb.with_name("pg_ctl")
    options = f"-k {data} -c listen_addresses={'*' if networks else ''} -c fsync=off"
    quietly(control, "-D", data / "d", "-w", "-l", data / "log", "-o", options, "start")
    try:
        yield
    finally:
        quietly(control, "-D", data / "d", "-m", "immediate", "stop")
