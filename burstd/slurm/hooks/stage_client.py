#!/usr/bin/python3 -SE
"""The hooks of burst_buffer/lua: puts Slurm's question to burstd and gives its answer to burst_buffer.lua.

``burstd-stage HOOK [-] [KEY=VALUE]...`` with the keys ``job``, ``uid``, ``gid``, ``script``, ``hurry``, ``polls``,
``file`` (for ``paths``: where Slurm wants the variables) and ``info.NAME``. ``-``: there are more on the standard
input, each ended by a zero byte, since everybody sees the arguments of a program. Runs as SlurmUser with next to no
environment, hence the standard library only, and little of it.

Standard output: one word, ``ok``, ``refused``, ``busy`` or ``absent``, then the text on the lines after it. The exit
status says the same (0, 1, 2, 3), but Lua 5.1 does not see it.

All but ``check``, ``paths`` and ``status`` wait for a burstd that is away, as long as Slurm lets them. ``check`` and
``paths`` run while slurmctld answers nobody else, so they give up soon. ``check`` waits AWAY_S for a burstd that is
being restarted, but not again and again: the spool says since when it has been away. The variables that ``paths``
needs came with the answer to ``data_in`` and lie in the spool, from where ``test_data_in`` sees too that all is well.

Socket and spool are looked up in the environment (BURSTD_STAGE_SOCKET, BURSTD_STAGE_SPOOL), then in
/etc/burstd/stage.conf (lines ``socket=PATH``, ``spool=PATH``), then the defaults below.
"""

import json
import os
import socket
import sys
import time

SOCKET = "/run/burstd/stage.sock"
SPOOL = "/var/spool/burstd/stage"
POLLED_HOOKS = ("data_in", "test_data_in", "data_out", "test_data_out")
"""Hooks that may be answered ``busy`` where Slurm polls."""
PERSISTENT_HOOKS = ("setup", "pre_run", "post_run", "teardown", "prolog", *POLLED_HOOKS)
"""Hooks that wait for burstd."""
HOOKS = ("check", "paths", "status", *PERSISTENT_HOOKS)
SCRIPT_HOOKS = ("check", "setup", "data_in", "data_out", "test_data_out")
"""Hooks that bring the script's text along."""
EXIT_STATUSES = {"ok": 0, "refused": 1, "busy": 2, "absent": 3}
_CONNECT_S = 0.5
_SOON_S = 2.0  # while slurmctld answers nobody else
RESTART_WAIT_S = 8.0
"""How long sbatch waits for a burstd that is away; it gives up itself after MessageTimeout, 10 s by default."""
_AWAY_AGAIN_S = 120.0
"""So long after it was found away nobody else waits that long: slurmctld must not stand still for as long as it is."""
_ANSWER_S = 60.0  # burstd says "again" twice within it
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_LARGEST_ANSWER = 1024 * 1024
_LARGEST_HEAD = 256 * 1024
_LARGEST_INPUT = 64 * 1024
_AWAY = "away"


class DaemonUnavailable(Exception):
    """burstd does not answer, or not in time."""


class DaemonAway(DaemonUnavailable):
    """Nobody listens, or whoever listens ends or does not answer: burstd is not running, or has just begun."""


def socket_and_spool(
    environment: "os._Environ[str] | dict[str, str]", client: str = "stage", socket: str = SOCKET, spool: str = SPOOL
) -> "tuple[str, str]":
    """Path of the socket and of the spool folder of ``client``, by default the paths given."""
    found = {"socket": socket, "spool": spool}
    try:
        with open(f"/etc/burstd/{client}.conf", encoding="utf-8") as lines:  # noqa: PTH123 - pathlib costs 10 ms of start
            for line in lines:
                key, equals, value = line.partition("=")
                if equals and key.strip() in found:
                    found[key.strip()] = value.strip()
    except OSError:  # no such file is the usual case, and one that cannot be read must not stop the call
        pass
    variable = f"BURSTD_{client.upper()}"
    return environment.get(f"{variable}_SOCKET", found["socket"]), environment.get(f"{variable}_SPOOL", found["spool"])


def send_hook_call(wire: socket.socket, line: bytes) -> None:
    """Sends the question. Raises OSError."""
    try:
        wire.sendall(line)
    except BrokenPipeError:  # it does not want to hear more, and has said why
        return


def exchange_call(path: str, line: bytes, limit_s: float) -> "dict[str, object]":
    """One question, one answer. Raises Absent."""
    end = time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(min(_CONNECT_S, limit_s))
        try:
            wire.connect(path)
        except OSError as error:
            raise DaemonAway(error.strerror or "it does not listen") from None
        try:
            send_hook_call(wire, line)
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < _LARGEST_ANSWER:
                wire.settimeout(max(0.01, end - time.monotonic()))
                piece = wire.recv(1 << 16)
                if not piece:
                    break
                answer += piece
            said = json.loads(answer)
        except OSError as error:
            raise DaemonAway(error.strerror or "it did not answer in time") from None
        except ValueError:
            raise DaemonAway("it closed the connection without an answer") from None
    if not isinstance(said, dict) or said.get("result") not in (*EXIT_STATUSES, "again"):
        raise DaemonUnavailable("what answers there is not burstd")
    return said


def ask_until_answered(path: str, hook: str, line: bytes, *, polls: bool, away_s: float = 0.0) -> "dict[str, object]":
    """Asks until there is an answer that Slurm can use. Raises Absent, for hooks that do not wait.

    ``away_s``: how long one of those waits all the same for a burstd that is away.
    """
    persistent = hook in PERSISTENT_HOOKS
    pause = _FIRST_PAUSE_S
    soon = time.monotonic() + _SOON_S
    late = time.monotonic() + (away_s or _SOON_S)
    while True:
        try:
            said = exchange_call(path, line, _ANSWER_S if persistent else max(0.01, late - time.monotonic()))
        except DaemonUnavailable as reason:
            waits = isinstance(reason, DaemonAway) and away_s > 0 and time.monotonic() + pause < late
            if not persistent and not waits:
                raise
        else:
            if said["result"] == "again":
                pause = _FIRST_PAUSE_S
                continue
            if said["result"] != "busy" or (polls and hook in POLLED_HOOKS):
                return said
            if not persistent and time.monotonic() + pause > soon:
                raise DaemonUnavailable("it is busy")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S if persistent else 4 * _FIRST_PAUSE_S)


def remaining_restart_wait(spool: str) -> float:
    """How long a ``check`` may wait for a burstd that is away, by when one found it so; notes that it is."""
    mark = os.path.join(spool, f"{_AWAY}.env")  # noqa: PTH118
    try:
        since = time.time() - os.stat(mark).st_mtime  # noqa: PTH116
        if 0 <= since < _AWAY_AGAIN_S:
            return max(0.0, RESTART_WAIT_S - since)
    except OSError:  # nobody has found it away of late
        pass
    try:
        os.makedirs(spool, 0o750, exist_ok=True)  # noqa: PTH103
        with open(mark, "w", encoding="utf-8"):  # noqa: PTH123
            os.utime(mark)
    except OSError:  # without the note every call would wait
        return 0.0
    return RESTART_WAIT_S


def environment_lines(said: "dict[str, object]") -> str:
    """The answer's variables as Slurm reads them, a line each."""
    env = said.get("env")
    return "".join(f"{name}={value}\n" for name, value in env.items()) if isinstance(env, dict) else ""


def save_variables(spool: str, job: str, text: str) -> None:
    """Leaves the variables for ``paths``, which must do without burstd if need be."""
    file_path = os.path.join(spool, f"{job}.env")  # noqa: PTH118
    unfinished = f"{file_path}.{os.getpid()}"
    try:
        os.makedirs(spool, 0o750, exist_ok=True)  # noqa: PTH103
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(unfinished, file_path)  # noqa: PTH105
    except OSError as error:
        import syslog  # noqa: PLC0415 - only where something is wrong

        said = f"burstd-stage: the variables of job {job} cannot be kept in {spool}: {error.strerror}"
        syslog.syslog(syslog.LOG_ERR, f"{said}; if burstd is away when the job starts, it is held")


def saved_variables(spool: str, job: str) -> "str | None":
    """What ``keep`` left; None where there is nothing."""
    try:
        with open(os.path.join(spool, f"{job}.env"), encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH118, PTH123
            return file.read()
    except OSError:
        return None


def remove_variables(spool: str, job: str) -> None:
    """Removes what ``keep`` left."""
    try:
        os.unlink(os.path.join(spool, f"{job}.env"))  # noqa: PTH108, PTH118
    except OSError:  # nothing was left, or the next job of this number writes over it
        return


def read_script_head(script: str, array: str) -> str:
    """The beginning of a job script, where its directives are. burstd need not be let into Slurm's state folder.

    Slurm 24.11 and later name, for most tasks of an array, a file that is not there: then it is the array's.
    """
    candidates = [script]
    if array.isdigit() and array != "0":
        state = script.rpartition("/hash.")[0]
        candidates.append(f"{state}/hash.{int(array) % 10}/job.{array}/script")
    for place in candidates:
        try:
            with open(place, "rb") as file:  # noqa: PTH123
                return os.fsdecode(file.read(_LARGEST_HEAD))
        except OSError:  # the next place may have it
            continue
    return ""  # burstd sees that there is no text, and says so


def encode_call(hook: str, words: "dict[str, str]") -> bytes:
    """The line that burstd reads."""
    call = {
        "hook": hook,
        "job": words.get("job", ""),
        "uid": int(words["uid"]) if words.get("uid", "").isdigit() else None,
        "gid": int(words["gid"]) if words.get("gid", "").isdigit() else None,
        "script": words.get("script", ""),
        "hurry": words.get("hurry") == "true",
        "info": {key[5:]: value for key, value in words.items() if key.startswith("info.")},
    }
    if hook in SCRIPT_HOOKS and call["script"]:
        call["text"] = read_script_head(words["script"], words.get("info.array_job_id", ""))
    return json.dumps(call).encode() + b"\n"


def run_hook(hook: str, words: "dict[str, str]") -> "tuple[str, str]":
    """What to tell Slurm: the word and the text."""
    path, spool = socket_and_spool(os.environ)
    job = words.get("job", "")
    if hook == "data_in":
        remove_variables(spool, job)
    elif hook == "test_data_in" and saved_variables(spool, job) is not None:
        return "ok", ""
    line, polls = encode_call(hook, words), words.get("polls") == "yes"
    try:
        began = time.monotonic()
        try:
            said = ask_until_answered(path, hook, line, polls=polls)
        except DaemonAway:
            rest = remaining_restart_wait(spool) - (time.monotonic() - began) if hook == "check" else 0.0
            if rest <= 0:
                raise
            said = ask_until_answered(path, hook, line, polls=polls, away_s=rest)
        remove_variables(spool, _AWAY)
    except DaemonUnavailable as reason:
        left = saved_variables(spool, job) if hook == "paths" else None
        if left is None:
            why = f"burstd does not answer at {path} ({reason}), so nobody can look after the data of this job"
            return "absent", f"{why}: try again in a minute; if it stays so, tell your administrator"
        said = {"result": "ok"}
        text = left
    else:
        text = environment_lines(said)
    if said["result"] == "ok":
        if hook in ("data_in", "test_data_in"):
            save_variables(spool, job, text)
        elif hook == "teardown":
            remove_variables(spool, job)
        elif hook == "paths":
            # Slurm 24.11 and later make no folder for most tasks of an array, and read the file all the same.
            os.makedirs(os.path.dirname(words["file"]), 0o700, exist_ok=True)  # noqa: PTH103, PTH120
            with open(words["file"], "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
                file.write(text)
    return str(said["result"]), str(said.get("text") or "")


def main(argv: "list[str] | None" = None) -> int:
    """The console script."""
    hook, *rest = (sys.argv if argv is None else argv)[1:] or [""]
    if "-" in rest:
        rest += os.fsdecode(sys.stdin.buffer.read(_LARGEST_INPUT)).split("\0")
    words = dict(word.split("=", 1) for word in rest if "=" in word)
    if hook not in HOOKS or (hook == "paths" and "file" not in words):
        sys.stderr.write(f"usage: burstd-stage {'|'.join(HOOKS)} [-] [KEY=VALUE]...\n")
        return 64
    word, text = run_hook(hook, words)
    sys.stdout.buffer.write(os.fsencode(f"{word}\n{text}"))
    return EXIT_STATUSES[word]


if __name__ == "__main__":
    sys.exit(main())
