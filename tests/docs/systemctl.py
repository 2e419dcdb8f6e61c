#!/usr/bin/python3
"""Stands for systemctl in a box without systemd: starts units as systemd would, as far as ours need it.

A service: ExecStartPre=, StateDirectory=, RuntimeDirectory=, LoadCredential= with the mounts that show it, User=,
UMask=, WorkingDirectory=, the socket of its socket unit, and for Type=notify its word that it is ready. What hardens
it (ProtectSystem= ...) is tried under a real systemd in tests/systemd.
"""

import json
import os
import pwd
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

UNITS = Path("/etc/systemd/system")
RECORDS = Path("/run/systemctl")
PACKAGED = {"slurmctld": ["slurmctld"], "munge": ["runuser", "-u", "munge", "--", "munged"]}
PATIENCE_S = 60.0


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / unit).read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.setdefault(key, []).append(value)
    return found


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"systemctl: not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.05)


def running(unit: str) -> int:
    try:
        pid = int(json.loads((RECORDS / unit).read_text(encoding="utf-8"))["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError):
        return 0
    return pid


def directory(top: str, name: str, mode: str, owner: "pwd.struct_passwd") -> None:
    path = Path(top) / name
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, owner.pw_uid, owner.pw_gid)
    path.chmod(int(mode, 8))


def start(unit: str) -> None:
    conf = settings(unit)
    if running(unit):
        return

    def one(key: str, default: str = "") -> str:
        return conf.get(key, [default])[-1]

    owner = pwd.getpwnam(one("User", "root"))
    name = unit.removesuffix(".service")
    for kind, top in (("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")):
        if one(kind):
            directory(top, one(kind), one(kind + "Mode", "0755"), owner)
    mounts, credentials = ["mount --make-rprivate /"], RECORDS / f"{name}.credentials"
    for pair in conf.get("LoadCredential", []):
        label, _, source = pair.partition(":")
        credentials.mkdir(mode=0o500, parents=True, exist_ok=True)
        (credentials / label).write_bytes(Path(source).read_bytes())
        os.chown(credentials, owner.pw_uid, owner.pw_gid)
        os.chown(credentials / label, owner.pw_uid, owner.pw_gid)
        (credentials / label).chmod(0o440)
    mounts += [f"mount -t tmpfs -o mode=755 tmpfs {d.partition(':')[0]}" for d in conf.get("TemporaryFileSystem", [])]
    for pair in conf.get("BindReadOnlyPaths", []):
        source, _, target = pair.replace("%d", str(credentials)).partition(":")
        mounts.append(f"touch {target} && mount --bind {source} {target}")
    for line in conf.get("ExecStartPre", []):
        subprocess.run(shlex.split(line.lstrip("+-")), check=True)
    passed = listening(f"{name}.socket")
    ready = RECORDS / f"{name}.notify"
    ready.unlink(missing_ok=True)
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(ready))
    ready.chmod(0o666)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    if one("Type") == "notify":
        environment["NOTIFY_SOCKET"] = str(ready)
    if passed is not None:
        environment |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": settings(f"{name}.socket")["FileDescriptorName"][0]}
        os.dup2(passed.fileno(), 3)
    become = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--init-groups"]
    become += ["--no-new-privs"] if one("NoNewPrivileges") == "yes" else []
    steps = " && ".join([*mounts, f"umask {one('UMask', '0022')}", f"cd {one('WorkingDirectory', '/')}"])
    script = f'{steps} && LISTEN_PID=$$ exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", *become, *shlex.split(one("ExecStart"))]
    with Path(f"/var/log/{name}.log").open("ab") as log:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
            pass_fds=(3,) if passed is not None else (), cwd="/",
        )  # fmt: skip
    (RECORDS / unit).write_text(json.dumps({"pid": child.pid}), encoding="utf-8")
    if one("Type") != "notify":
        return
    notified.setblocking(False)

    def notified_ready() -> bool:
        if child.poll() is not None:
            log = Path(f"/var/log/{name}.log").read_text(encoding="utf-8")
            sys.exit(f"systemctl: {unit} ended with {child.returncode}: {log[-1500:]}")
        try:
            return b"READY=1" in notified.recv(4096)
        except BlockingIOError:
            return False

    wait(notified_ready, f"{unit} ready")


def listening(unit: str) -> "socket.socket | None":
    if not (UNITS / unit).exists():
        return None
    conf = settings(unit)
    path = Path(conf["ListenStream"][0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    path.chmod(int(conf["SocketMode"][0], 8))
    made.listen(int(conf["Backlog"][0]))
    return made


def stop(unit: str) -> None:
    pid = running(unit)
    if pid:
        os.kill(pid, signal.SIGTERM)
        wait(lambda: not running(unit), f"{unit} stopped")
    (RECORDS / unit).unlink(missing_ok=True)


def stop_packaged(program: str) -> None:
    subprocess.run(["pkill", "-TERM", "-x", program], check=False)
    wait(lambda: subprocess.run(["pgrep", "-x", program], capture_output=True, check=False).returncode == 1, program)


def act(verb: str, unit: str) -> None:
    name = unit.removesuffix(".service")
    if name in PACKAGED:
        if verb in ("stop", "restart"):
            stop_packaged(PACKAGED[name][-1])
        if verb in ("start", "restart"):
            subprocess.run(PACKAGED[name], check=True)
        return
    if not (UNITS / (unit if "." in unit else f"{unit}.service")).exists():
        sys.exit(f"systemctl: there is no unit {unit}")
    if unit.endswith(".socket"):
        return  # its service brings it
    unit = f"{name}.service"
    if verb in ("stop", "restart"):
        stop(unit)
    if verb in ("start", "restart"):
        start(unit)
    if verb == "reload":
        if not running(unit):
            sys.exit(f"systemctl: {unit} does not run")
        conf = settings(unit)
        words = ["runuser", "-u", conf["User"][0], "--", *shlex.split(conf["ExecReload"][0])]
        if subprocess.run(words, check=False).returncode:
            sys.exit(f"systemctl: {unit} was not reloaded")


def main() -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    now, verb, units = "--now" in sys.argv, words[0], words[1:]
    if verb in ("enable", "disable"):
        missing = [u for u in units if not any(UNITS.glob(f"{u}*")) and not re.search(r"slurm|munge", u)]
        if missing:
            sys.exit(f"systemctl: there is no unit {missing[0]}")
        if not now:
            return
        verb = "start" if verb == "enable" else "stop"
    if verb == "daemon-reload":
        return
    if verb not in ("start", "stop", "restart", "reload"):
        sys.exit(f"systemctl: this one does not know {verb}")
    for unit in units:
        act(verb, unit)


if __name__ == "__main__":
    main()
