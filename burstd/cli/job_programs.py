"""Programs with pages for a browser that burstctl runs as jobs: how each is started, and the script of its job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """One of them. Its shell text may use ``$port``, ``$idle_s``, ``$token``, ``$private``, a folder that only the user
    can enter, and the function ``run``, which is the program."""

    name: str
    """The command of burstctl, and the job's name."""
    commands: tuple[str, ...]
    """The first of these that is on the node's PATH is run."""
    setup: str
    """Shell lines before it: give it the token, never as an argument, and add arguments that not all versions have."""
    arguments: str
    """Shell words: listen at ``$port`` of 127.0.0.1 only, end by itself after ``$idle_s``."""
    query: str = ""
    """Of the address that lets a browser in, with ``{token}``; empty: the page asks for the token as a password."""


NOTEBOOK = Program(
    "notebook",
    ("jupyter-lab", "jupyter-notebook", "jupyter-server"),
    # jupyter_server.auth.identity, IdentityProvider.token: the log and the files of the server then show no token.
    'unset -v JUPYTER_TOKEN\nexport JUPYTER_TOKEN_FILE="$private/token"',
    '--no-browser --ServerApp.ip=127.0.0.1 --ServerApp.port="$port" --ServerApp.port_retries=0'
    # The server ends when it has no kernel or terminal and nobody has asked for anything for so long.
    ' --ServerApp.shutdown_no_activity_timeout="$idle_s"'
    ' --MappingKernelManager.cull_idle_timeout="$idle_s" --MappingKernelManager.cull_interval=60'
    " --MappingKernelManager.cull_connected=True"
    ' --TerminalManager.cull_inactive_timeout="$idle_s" --TerminalManager.cull_interval=60',
    "?token={token}",
)
CODE = Program(
    "code",
    ("code-server",),
    # Variables would come before the file. --idle-timeout-seconds is of code-server 4.106.
    "unset -v PORT PASSWORD HASHED_PASSWORD\n"
    'printf "bind-addr: 127.0.0.1:%s\\nauth: password\\npassword: %s\\ncert: false\\n" "$port" "$token" '
    '>"$private/config.yaml"\n'
    'if run --help | grep -q -e --idle-timeout-seconds; then set -- --idle-timeout-seconds "$idle_s"\n'
    'else echo "This code-server has no limit of idle time: the job ends at its time limit." >&2; fi',
    '--config "$private/config.yaml" --disable-telemetry --disable-update-check "$@" "$PWD"',
)
PROGRAMS = {program.name: program for program in (NOTEBOOK, CODE)}
_PARAMETERS = re.compile(r"^kind=(\w+) port=(\d+) token=(\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Session:
    """A program in a job: what its browser must know."""

    program: Program
    port: int
    """Of 127.0.0.1 of the job's node."""
    token: str

    def address(self, host: str, port: int) -> str:
        """Where a browser finds it."""
        return f"http://{host}:{port}/{self.program.query.format(token=self.token)}"


def batch_script(
    session: Session, *, idle_s: int, partitions: Sequence[str], modules: Sequence[str], command: str
) -> str:
    """The job's script, which Slurm shows to the job's owner and administrators only.

    Its ``#SBATCH`` lines stand behind what sbatch's words and environment say. ``command``: shell words in the place of
    the program that is looked for; empty: it is looked for.
    """
    program = session.program
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={program.name}",
        "#SBATCH --time=02:00:00",
        *([f"#SBATCH --partition={','.join(partitions)}"] if partitions else []),
        # One that sbatch has brought along would be in the environment of what is run.
        "unset -v kind port token idle_s private program",
        f"kind={program.name} port={session.port} token={session.token}",
        f"idle_s={idle_s}",
        'private=$(mktemp -d -p /tmp) && printf %s "$token" >"$private/token" || exit',
    ]
    if modules:
        lines.append("type module >/dev/null 2>&1 || . /etc/profile")
        lines += [f"module load {shlex.quote(module)} || exit" for module in modules]
    if not command:
        command = '"$program"'
        lines += [
            f"for one in {' '.join(program.commands)}; do",
            '    program=$(command -v "$one") && break',
            "done",
            (
                f'[ -n "$program" ] || {{ echo "Not on the PATH of this node: {", ".join(program.commands)}; '
                'say --module or --command." >&2; exit 127; }'
            ),
        ]
    lines += [f'run() {{ {command} "$@"; }}', program.setup, f"run {program.arguments}"]
    return "\n".join([*lines, "status=$?", 'rm -rf "$private"', "exit $status", ""])


def parse_session(script: str) -> Session | None:
    """What ``batch_script`` has written; None: it is another script."""
    found = _PARAMETERS.search(script)
    if found is None or found[1] not in PROGRAMS:
        return None
    return Session(PROGRAMS[found[1]], int(found[2]), found[3])
