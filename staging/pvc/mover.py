"""First process of a mover pod: it ends when nobody was there for long. Run as ``python3 -c TEXT SECONDS FIRST``,
where it waits at least FIRST seconds for the first session.

A session is any other process of the pod: burstd's program, or somebody who looks around. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time

OLD_PYTHON = 65
"""Exit status where Python is older than 3.11."""


def main() -> int:
    """The program."""
    if sys.version_info < (3, 11):  # noqa: UP036 - it is said here
        sys.stderr.write("Python %d.%d is older than 3.11\n" % sys.version_info[:2])  # noqa: UP031 - for that Python
        return OLD_PYTHON
    idle_s, first_s = float(sys.argv[1]), float(sys.argv[2])
    # The first process of a pod is deaf to signals that it does not ask for.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # noqa: ARG005 - a handler
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # noqa: ARG005 - a handler
    until = time.monotonic() + max(idle_s, first_s)
    while time.monotonic() < until:
        time.sleep(min(1.0, idle_s / 4))
        reap_children()
        if has_other_processes():
            until = time.monotonic() + idle_s
    return 0


def reap_children() -> None:
    """Waits for what has ended and has no other parent."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def has_other_processes() -> bool:
    """Whether there are other processes than this one."""
    return any(name.isdigit() and int(name) != os.getpid() for name in os.listdir("/proc"))  # noqa: PTH208 - of 3.6 too


if __name__ == "__main__":
    sys.exit(main())
