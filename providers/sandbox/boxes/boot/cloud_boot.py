"""Runs inside a box, on the box's own Python: all stages of the box's own cloud-init, in one process.

There is no systemd to start them, and one process spares three starts of Python. sshd is started where a real machine
has it: after the second stage, which makes the host keys.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

STAGES = (("init", "--local"), ("init",), ("modules", "--mode=config"), ("modules", "--mode=final"))


def stage(words: tuple[str, ...]) -> object:
    """Runs one stage; its exit code, 0 or None when all went well."""
    try:
        return importlib.import_module("cloudinit.cmd.main").main(["cloud-init", *words])
    except SystemExit as end:
        return end.code


def main() -> None:
    """``cloud_boot.py [COMMAND...]``: the command is run between the second and the third stage."""
    for words in STAGES:
        code = stage(words)
        if code:
            sys.stderr.write(f"cloud-init {' '.join(words)} ended with {code}\n")
        sys.stdout.flush()
        if words == ("init",) and sys.argv[1:]:
            subprocess.run(sys.argv[1:], check=False)


if __name__ == "__main__":
    main()
