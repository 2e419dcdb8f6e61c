"""The store that is a storage node reached by ssh: burstd's own program there, found or delivered at first use.

The ssh program does it all; paramiko, which is slower by half, is not needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

from burstd.data.ssh_program import ssh_argv
from burstd.data.wire import WireClient
from burstd.model.stager import (
    Reach,
    Stager,
    StagerError,
    StagerPlugin,
    StoreBusy,
    StoreRefused,
    StoreSpaceGone,
)
from staging.names import cluster_part
from staging.served import ServedStager, serve_program
from staging.ssh_node import LaunchedSshStager
from staging.ssh_settings import SshSettings

__all__ = ["SshSettings", "SshStager", "plugin"]

LOOK_S = 5.0
"""Whether the program is still there is looked at again after so long, when a node is about to start it."""
_PIPE_BYTES = 1 << 20
# Of the ssh program: what trying again does not change.
_FOR_GOOD = re.compile(
    r"permission denied|host key verification failed|identification has changed|host key is known|bad permissions|"
    r"load key|not accessible|no matching|unprotected|bad configuration|bad owner",
    re.IGNORECASE,
)
_DELIVER = """
py=$1 base=$2 file=$3 size=$4 digest=$5
command -v "$py" >/dev/null 2>&1 || exit 64
"$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || exit 65
[ -d "$base" ] || exit 66
[ -w "$base" ] || exit 67
same='import hashlib, sys; sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])'
if [ -s "$file" ] && "$py" -I -c "$same" "$file" "$digest"; then cat >/dev/null; exit 0; fi
umask 077
mkdir -p "${file%/*}" || exit 67
cat >"$file.$$" && [ "$(wc -c <"$file.$$")" -eq "$size" ] && mv -f "$file.$$" "$file" && exit 0
rm -f "$file.$$"
exit 68
"""


class SshStager(ServedStager):
    """Objects as files of a storage node, over a few ssh connections, each opened when it is needed."""

    def __init__(self, name: str, cluster: str, settings: SshSettings) -> None:
        super().__init__(name, f"the storage node {settings.host}", settings.connections)
        self._settings = settings
        if settings.key_file is None:
            raise StoreRefused(f"the store {name} has no key_file")
        self._key = settings.key_file
        self._program = serve_program()
        self._digest = hashlib.sha256(self._program).hexdigest()
        self._file = str(settings.path / ".programs" / f"serve-{self._digest[:16]}.pyz")
        self._looked = 0.0
        words = [
            settings.python,
            "-I",
            self._file,
            *["--sync"][: settings.sync],
            str(settings.path / cluster_part(cluster)),
        ]
        self._command = shlex.join(words)

    def reach(self) -> Reach:
        """With the key that nodes are given. Raises StoreRefused where it, or the host's keys, cannot be read."""
        if time.monotonic() - self._looked >= LOOK_S:
            # Each node starts the program anew, long after the connections from here have it in memory.
            self._prepared = False
        self._prepare()
        at = self._settings
        try:
            key = (at.node_key_file or self._key).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreRefused(f"the key that nodes get for {self._where} cannot be read: {error}") from None
        facts = {
            "host": at.node_host or at.host,
            "port": at.node_port or at.port,
            "user": at.user,
            "key": key,
            "host_keys": self._host_keys(),
            "command": self._command,
        }
        return Reach("ssh", facts)

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """There are no URLs."""
        raise StoreRefused(f"{self._where} is reached by ssh: there is no URL to {method} {len(keys)} objects")

    def _open(self) -> WireClient:
        complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the connection has ended
        try:
            process = subprocess.Popen(
                self._argv(self._command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            complaints.close()
            raise self._no_ssh(error) from None
        assert process.stdin is not None  # noqa: S101 - for mypy
        assert process.stdout is not None  # noqa: S101 - for mypy
        for stream in (process.stdin, process.stdout):
            # Without privileges a user's pipes may hold less in all; then they keep their size.
            with suppress(OSError):
                fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return WireClient(
            process.stdout,
            process.stdin,
            name=self._where,
            patience_s=self._settings.timeout_s,
            why=lambda reason: self._ended(process, complaints, reason),
        )

    def _ended(self, process: subprocess.Popen[bytes], complaints: IO[bytes], reason: str) -> StagerError:
        """Why a connection is no more; the program has ended then."""
        try:
            # It has more to say than that it hung up, and says it when it ends by itself.
            process.wait(2.0 if reason == "it hung up" or "broke" in reason else 0.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with complaints:
            complaints.seek(0)
            said = complaints.read(1 << 16).decode("utf-8", "replace")
        if process.returncode not in {255, 0} and process.returncode > 0:
            self._prepared = False  # the far end's program: perhaps it is not there any more
        return self._complaint(process.returncode, said, reason)

    def _complaint(self, status: int, said: str, reason: str) -> StagerError:
        line = _last_line(said)
        if status == 255 and _FOR_GOOD.search(said):
            at = self._settings
            return StoreRefused(
                f"{self._where} cannot be entered as {at.user}: {line}. Look at key_file {at.key_file}, at "
                f"known_hosts_file {at.known_hosts_file}, and at authorized_keys there"
            )
        return StoreBusy(f"{self._where}: {line or reason}")

    def _prepare_now(self) -> None:
        at = self._settings
        size = str(len(self._program))
        words = ["sh", "-c", _DELIVER, "sh", at.python, str(at.path), self._file, size, self._digest]
        try:
            done = subprocess.run(
                self._argv(shlex.join(words)),
                input=self._program,
                capture_output=True,
                timeout=at.timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise StoreBusy(f"{self._where}: no answer within {at.timeout_s:.0f} s") from None
        except OSError as error:
            raise self._no_ssh(error) from None
        said = done.stderr.decode("utf-8", "replace")
        refusals = {
            64: f"has no {at.python}: install Python 3.11 or newer there, or name it (python)",
            65: f"has a {at.python} older than 3.11: install a newer one there, and name it (python)",
            66: f"has no folder {at.path}: make it, or mount its file system",
            67: f"lets {at.user} write nothing into {at.path}: give it to that user",
        }
        if done.returncode in refusals:
            raise StoreRefused(f"{self._where} {refusals[done.returncode]}")
        if done.returncode == 68:
            raise StoreSpaceGone(f"{self._where} took no file of {len(self._program)} bytes: {_last_line(said)}")
        if done.returncode != 0:
            raise self._complaint(done.returncode, said, f"a first command ended with status {done.returncode}")
        self._looked = time.monotonic()

    def _argv(self, command: str) -> list[str]:
        at = self._settings
        return ssh_argv(
            at.host,
            command,
            user=at.user,
            key_file=str(self._key),
            known_hosts_file=str(at.known_hosts_file),
            port=at.port,
            ciphers=at.ciphers,
            timeout_s=at.timeout_s,
        )

    def _host_keys(self) -> list[str]:
        at = self._settings
        name = at.host if at.port == 22 else f"[{at.host}]:{at.port}"
        try:
            # It knows hashed names too.
            found = subprocess.run(
                ["ssh-keygen", "-F", name, "-f", str(at.known_hosts_file)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise self._no_ssh(error) from None
        lines = [
            line.split(None, 1)[1] for line in found.stdout.splitlines() if line and not line.startswith(("#", "@"))
        ]
        if not lines:
            raise StoreRefused(
                f"{at.known_hosts_file} has no host key of {name}: add what ssh-keyscan -p {at.port} {at.host} prints, "
                "compared with the node's console"
            )
        return lines

    def _no_ssh(self, error: OSError) -> StoreRefused:
        return StoreRefused(f"the program ssh cannot be run ({error.strerror}): install openssh-client on the head")


def _last_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1].strip()[-400:] if lines else ""


def _make(name: str, cluster: str, settings: SshSettings) -> Stager:
    wish = settings.wish
    return LaunchedSshStager(name, cluster, settings, wish) if wish else SshStager(name, cluster, settings)


plugin = StagerPlugin(name="ssh", settings=SshSettings, make=_make)
