#!/usr/bin/python3 -SE
"""burstd-prolog, which is PrologSlurmctld: has the trees of the site mounted on a job's cloud nodes before it starts.

slurmctld runs it as SlurmUser on the head when a job of any kind (sbatch, srun, salloc) has its nodes, and starts the
job when it ends with 0. With another status a batch job is requeued, and may start again after two minutes; the others
end. A site with a program of its own there calls burstd-prolog from it and ends with its status.

Jobs on other nodes never wait for burstd: the spool names the nodes that have mounts. For these it waits for a burstd
that is away, LIMIT_S at most. Where the spool cannot be read no job waits, for all jobs of the site come here.

Socket and spool are looked up in the environment (BURSTD_PROLOG_SOCKET, BURSTD_PROLOG_SPOOL), then in
/etc/burstd/prolog.conf (lines ``socket=PATH``, ``spool=PATH``), then the defaults below.
"""

import json
import os
import signal
import sys

from burstd.slurm.hooks.stage_client import ask_until_answered, socket_and_spool
from burstd.slurm.hostlist import expand

SOCKET = "/run/burstd/prolog.sock"
SPOOL = "/var/spool/burstd"
NODES = "prolog-nodes"
"""File of the spool: the nodes that have mounts, a line each."""
HOOK = "prolog"
LIMIT_S = 900


def nodes_with_mounts(spool: str) -> "frozenset[str]":
    """The nodes on which burstd mounts something."""
    path = os.path.join(spool, NODES)  # noqa: PTH118
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return frozenset(file.read().splitlines())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"burstd-prolog: {path} cannot be read, so jobs start without their trees: {error}\n")
        return frozenset()


def job_id(environment: "os._Environ[str] | dict[str, str]") -> str:
    """As squeue shows it."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task.isdigit() else environment.get("SLURM_JOB_ID", "")


def encode_call(environment: "os._Environ[str] | dict[str, str]") -> bytes:
    """The question, as StageServer reads it. Raises KeyError, ValueError where slurmctld's variables are missing."""
    info = {
        "user": environment["SLURM_JOB_USER"],
        "nodes": environment["SLURM_JOB_NODELIST"],
        "queue_id": job_id(environment),
    }
    call = {"hook": HOOK, "job": environment["SLURM_JOB_ID"], "uid": int(environment["SLURM_JOB_UID"]), "info": info}
    return json.dumps(call).encode() + b"\n"


def main() -> int:
    """The console script. slurmctld logs what it writes to the standard error."""
    path, spool = socket_and_spool(os.environ, "prolog", SOCKET, SPOOL)
    shown = nodes_with_mounts(spool)
    try:
        if not shown or shown.isdisjoint(expand(os.environ["SLURM_JOB_NODELIST"])):
            return 0
        line = encode_call(os.environ)
    except (KeyError, ValueError) as error:
        sys.stderr.write(f"burstd-prolog: {error!r}; slurmctld runs it as PrologSlurmctld\n")
        return 1
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LIMIT_S)
    said = ask_until_answered(path, HOOK, line, polls=False)
    if said["result"] == "ok":
        return 0
    sys.stderr.write(f"burstd-prolog: {said.get('text')}\n")
    return 1


def _give_up(_number: int, _frame: object) -> None:
    sys.stderr.write(f"burstd-prolog: burstd has not mounted the job's trees within {LIMIT_S} s; is it running?\n")
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
