#!/usr/bin/python3 -SE
"""ResumeProgram, SuspendProgram and ResumeFailProgram of slurmctld: hands the call to burstd and ends at once.

``burstd-power resume|suspend|resumefail HOSTLIST``; under a name that ends in one of those words (``burstd-resume``)
the first word is left out, since slurm.conf takes a path without arguments. Runs as SlurmUser with next to no
environment, hence the standard library only, and little of it. It never fails: a call that burstd does not take is
left in the spool, which burstd reads when it is up again.

Socket and spool are looked up in the environment (BURSTD_POWER_SOCKET, BURSTD_POWER_SPOOL), then in
/etc/burstd/power.conf (lines ``socket=PATH``, ``spool=PATH``), then the defaults below.
"""

import json
import os
import socket
import sys
import time

SOCKET = "/run/burstd/power.sock"
SPOOL = "/var/spool/burstd/power"
SETTINGS = "/etc/burstd/power.conf"
POWER_CALLS = ("resumefail", "suspend", "resume")
ACKNOWLEDGED = b"taken\n"
_CONNECT_S = 0.5
_ANSWER_S = 2.0
_LARGEST_RESUME_FILE = 16 * 1024 * 1024


def socket_and_spool(environment: "os._Environ[str] | dict[str, str]", file: str = SETTINGS) -> "tuple[str, str]":
    """Path of the socket and of the spool folder."""
    found = {"socket": SOCKET, "spool": SPOOL}
    try:
        with open(file, encoding="utf-8") as lines:  # noqa: PTH123 - pathlib costs 10 ms of start
            for line in lines:
                key, equals, value = line.partition("=")
                if equals and key.strip() in found:
                    found[key.strip()] = value.strip()
    except OSError:  # no such file is the usual case, and one that cannot be read must not stop the call
        pass
    return (
        environment.get("BURSTD_POWER_SOCKET", found["socket"]),
        environment.get("BURSTD_POWER_SPOOL", found["spool"]),
    )


def read_resume_file(path: "str | None") -> object:
    """What SLURM_RESUME_FILE says of the jobs behind the call; None where there is none that can be read."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return json.loads(file.read(_LARGEST_RESUME_FILE))
    except (OSError, ValueError):
        return None


def send_power_call(path: str, line: bytes) -> bool:
    """True where burstd said that it has taken the call."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(_CONNECT_S)
        try:
            wire.connect(path)
            wire.settimeout(_ANSWER_S)
            wire.sendall(line)
            wire.shutdown(socket.SHUT_WR)
            return wire.recv(len(ACKNOWLEDGED), socket.MSG_WAITALL) == ACKNOWLEDGED
        except OSError:
            return False


def spool_call(spool: str, line: bytes) -> None:
    """Puts the call into the spool under a name that sorts by time. Raises OSError."""
    name = f"{time.time_ns():020d}-{os.getpid()}"
    unfinished = os.path.join(spool, "." + name)  # noqa: PTH118
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(unfinished, os.path.join(spool, name + ".json"))  # noqa: PTH104, PTH118


def send_or_spool(kind: str, hosts: str) -> None:
    """Hands over, or else leaves in the spool; what cannot even be left is said in the system's log."""
    call = {
        "kind": kind,
        "nodes": hosts,
        "resume_file": read_resume_file(os.environ.get("SLURM_RESUME_FILE")),
        "time": time.time(),
    }
    line = json.dumps(call).encode() + b"\n"
    path, spool = socket_and_spool(os.environ)
    if send_power_call(path, line):
        return
    try:
        spool_call(spool, line)
    except OSError as error:
        import syslog  # noqa: PLC0415 - only where all else failed

        text = f"burstd-power: {kind} {hosts} is lost: nobody takes it at {path}, and {spool} cannot be written"
        syslog.syslog(syslog.LOG_ERR, f"{text}: {error.strerror}")


def main(argv: "list[str] | None" = None) -> int:
    """The console script. Always 0: slurmctld could do nothing with another code."""
    words = sys.argv if argv is None else argv
    called = words[0].rpartition("/")[2]
    kind = next((k for k in POWER_CALLS if called.endswith(k)), "")
    rest = words[1:]
    if not kind and rest and rest[0] in POWER_CALLS:
        kind, rest = rest[0], rest[1:]
    if not kind or not rest:
        sys.stderr.write("usage: burstd-power resume|suspend|resumefail HOSTLIST\n")
        return 0
    send_or_spool(kind, rest[0])
    return 0


def resume() -> int:
    """``burstd-resume HOSTLIST``, for ResumeProgram."""
    return main(["burstd-resume", *sys.argv[1:]])


def suspend() -> int:
    """``burstd-suspend HOSTLIST``, for SuspendProgram."""
    return main(["burstd-suspend", *sys.argv[1:]])


def resumefail() -> int:
    """``burstd-resumefail HOSTLIST``, for ResumeFailProgram."""
    return main(["burstd-resumefail", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
