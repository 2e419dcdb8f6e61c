"""``#BURST container``: how a script comes to run in its image.

Slurm has nothing that wraps a batch script but job_submit.lua, which may change it. It changes one line: the script's
interpreter becomes ``env``, which runs the shell code in $BURST_RUN with the interpreter of before as its arguments;
the kernel adds the script's path and arguments. So any interpreter, any script and any argument pass as they are, and
the lines keep their numbers. The code comes with the job's other variables when the job starts.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from burstd.domain.staging import Directives
from burstd.transfer.privsep.client import UserWorker

_STARTER = "#!/usr/bin/env -S sh -c 'eval \"${BURST_RUN:?}\"'"
MAX_FIRST_LINE_BYTES = 127
"""Linux before 5.1 reads no more of an interpreter line."""
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a node has its programs."""
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+=:,@%-")
_BLANKS = " \t"
_SIF_MAGIC, _SIF_MAGIC_AT = b"SIF_MAGIC", 32
JOB_SUBMIT = "job_submit"
"""What job_submit.lua says of itself (``info.plugin``): it can put another first line in place of the script's."""


def container_first_line(script: str) -> str:
    """The line with which a script begins that runs in its container. Raises ValueError, with a sentence.

    A script that has it already keeps it.
    """
    first = script.partition("\n")[0]
    if first.startswith(f"{_STARTER} "):
        return first
    # As the kernel reads it: all that follows the interpreter is one argument.
    words = first[2:].strip(_BLANKS).replace("\t", " ").partition(" ")
    interpreter, argument = words[0], words[2].strip(_BLANKS)
    if not interpreter.startswith("/") or not first.replace("\t", " ").isprintable():
        raise ValueError(f"line 1: {first[:100]!r} names no interpreter by its whole path, such as #!/bin/bash")
    line = " ".join([_STARTER, *(_env_word(word) for word in (interpreter, argument) if word)])
    if (over := len(line.encode()) - MAX_FIRST_LINE_BYTES) > 0:
        raise ValueError(f"line 1: the interpreter's path and argument are {over} bytes too long for a container job")
    return line


def has_container_line(script: str) -> bool:
    """Whether it begins so that it runs in its container."""
    return script.startswith(f"{_STARTER} ")


def image_fault(worker: UserWorker, path: str) -> str:
    """Why a file is no image in Apptainer's format, by its first bytes; empty: it is one. Raises UserWorkerError."""
    directory, name = posixpath.split(path)
    (fd,) = worker.open_files(directory, [name])
    with os.fdopen(fd, "rb") as file:
        start = file.read(len(_SIF_MAGIC) + _SIF_MAGIC_AT)
    # https://github.com/apptainer/sif, pkg/sif/sif.go: the header begins with 32 bytes that launch it.
    if start[_SIF_MAGIC_AT:] == _SIF_MAGIC:
        return ""
    return "it is no SIF image: make one with 'apptainer build IMAGE.sif SOURCE'"


def _env_word(word: str) -> str:
    """A word as ``env -S`` reads it."""
    if set(word) <= _BARE:
        return word
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """How scripts are started in their images."""

    program: str = "apptainer"
    """A name that is looked up in $PATH, or a path."""
    trees: Sequence[str] = field(default=())
    """Directories of the site that a container shows too, where the node has them; perhaps with ``{user}``."""


_IN_IMAGE = "/|/bin|/boot|/dev|/etc|/etc/*|/lib|/lib64|/proc|/proc/*|/run|/sbin|/sys|/sys/*|/usr|/usr/*|/var"
"""Nothing of the node is shown over these."""
# Bound are the directories of the job and of the site, and what the links to the input lead to. In --bind a comma and a
# colon need a backslash. The lines are joined: Slurm passes no line break on.
_CODE = r"""
unset BURST_RUN;
for script; do case $script in (*/slurm_script) break;; esac; done;
program=$(PATH=$PATH:{path}; command -v {program}) || {{
  echo "burstd: $(uname -n) has no {program}, which #BURST container needs: ask for nodes that have it" >&2;
  exit {exit_code}; }};
set -- "$BURST_CONTAINER" "$0" "$@";
lines=$(printf '\n.'); IFS=${{lines%.}}; set -f;
for place in $(set +f;
  {{ printf '%s\n' "$PWD" "$HOME" "${{BURST_OUT%/out}}" "$script" "$TMPDIR" "$BURST_SHARED" "$BURST_VOLUMES" {trees};
    readlink -f "$BURST_IN"/* "$BURST_IN"/.[!.]*; }} 2>/dev/null | sort -u | while read -r place; do
    case $place in ({in_image}) ;; (*) [ ! -e "$place" ] || printf '%s\n' "$place";; esac;
  done | sed 's/[\\:,]/\\&/g');
do set -- --bind "$place" "$@"; done;
set +f; unset IFS;
for gpu in /dev/nvidia[0-9]*; do [ ! -e "$gpu" ] || {{ set -- --nv "$@"; break; }}; done;
exec "$program" -q exec --pwd "$PWD" "$@"
"""
NO_PROGRAM = 69
"""Exit status of a script whose node has no Apptainer: EX_UNAVAILABLE of sysexits.h."""


def container_variables(directives: Directives, user: str, input_dir: str, rules: ContainerRules) -> dict[str, str]:
    """What the script of this user's job needs to start in its image."""
    code = " ".join(line.strip() for line in _CODE.strip().splitlines()).format(
        path=PROGRAM_PATH,
        program=rules.program,
        trees=" ".join(shlex.quote(tree.replace("{user}", user)) for tree in rules.trees),
        in_image=_IN_IMAGE,
        exit_code=NO_PROGRAM,
    )
    return {"BURST_CONTAINER": f"{input_dir}/{directives.container}", "BURST_RUN": code}
