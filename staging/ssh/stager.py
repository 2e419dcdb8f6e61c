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
from pathlib import Path
from typing import IO, Literal

from burstd.domain.plugins.stager import (
    NodeAccess,
    Stager,
    StagerError,
    StagerPlugin,
    StoreBusy,
    StoreRefused,
    StoreSpaceGone,
)
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.frames import MAGIC
from burstd.transfer.protocol.ssh_program import ssh_argv
from staging.names import cluster_prefix
from staging.served import ServerStager, server_zipapp
from staging.ssh.settings import SshSettings
from staging.ssh.storage_node import LaunchedSshStager

__all__ = ["SshSettings", "SshStager", "plugin"]

PROGRAM_CHECK_S = 5.0
"""Whether the program is still there is looked at again after so long, when a node is about to start it."""
_PIPE_BYTES = 1 << 20
# Of the ssh program: what trying again does not change.
_PERMANENT = re.compile(
    r"permission denied|host key verification failed|identification has changed|host key is known|bad permissions|"
    r"load key|not accessible|no matching|unprotected|bad configuration|bad owner",
    re.IGNORECASE,
)
_INSTALL_SCRIPT = """
py=$1 base=$2 file=$3 size=$4 digest=$5 link=$6 key=$7 line=$8
command -v "$py" >/dev/null 2>&1 || exit 64
"$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || exit 65
[ -d "$base" ] || exit 66
[ -w "$base" ] || exit 67
same='import hashlib, sys; sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])'
if [ -s "$file" ] && "$py" -I -c "$same" "$file" "$digest"; then cat >/dev/null; else
    umask 077
    mkdir -p "${file%/*}" || exit 67
    cat >"$file.$$" && [ "$(wc -c <"$file.$$")" -eq "$size" ] && mv -f "$file.$$" "$file" ||
        { rm -f "$file.$$"; exit 68; }
fi
[ "$line" ] || exit 0
umask 077
[ "$(readlink "$link")" = "${file##*/}" ] || { ln -s "${file##*/}" "$link.$$" && mv -f "$link.$$" "$link"; } || exit 67
mkdir -p "$HOME/.ssh" || exit 69
keys=$(readlink -f "$HOME/.ssh/authorized_keys")
[ -e "$keys" ] || : >"$keys" || exit 69
[ "$(grep -F -e "$key" "$keys")" != "$line" ] || exit 0
{ grep -vF -e "$key" "$keys"; [ $? -le 1 ] && printf '%s\n' "$line"; } >"$keys.$$" && mv -f "$keys.$$" "$keys" && exit 0
rm -f "$keys.$$"
exit 69
"""
_SHELL = 93
"""The status of a command that a key runs which may run any."""


class SshStager(ServerStager):
    """Objects as files of a storage node, over a few ssh connections, each opened when it is needed."""

    def __init__(self, name: str, cluster: str, settings: SshSettings) -> None:
        super().__init__(name, f"the storage node {settings.host}", settings.connections)
        self._settings = settings
        if settings.key_file is None:
            raise StoreRefused(f"the store {name} has no key_file")
        self._key = settings.key_file
        self._program = server_zipapp()
        self._digest = hashlib.sha256(self._program).hexdigest()
        programs, part = settings.path / ".programs", cluster_prefix(cluster)
        self._file = str(programs / f"serve-{self._digest[:16]}.pyz")
        self._node_file = str(programs / f"nodes-{part}.pyz")
        """What the line of the nodes' key names in all versions."""
        self._program_checked_at = 0.0
        words = [*["--sync"][: settings.sync], str(settings.path / part)]
        self._command = shlex.join([settings.python, "-I", self._file, *words])
        self._node_command = shlex.join([settings.python, "-I", self._node_file, "--nodes", *words])
        self._node_key = ""
        """``TYPE BASE64``; empty: no node has asked for it yet."""
        self._node_key_checked = False

    def node_access(self) -> NodeAccess:
        """With the nodes' own key, which runs the program for nodes there and nothing else. See also Stager.

        Raises StoreRefused where it, or the host's keys, cannot be read, or where it may do more.
        """
        at = self._settings
        file, public, key = self._read_node_key()
        if public != self._node_key:
            self._node_key, self._prepared, self._node_key_checked = public, False, False
        if time.monotonic() - self._program_checked_at >= PROGRAM_CHECK_S:
            # Each node starts the program anew, long after the connections from here have it in memory.
            self._prepared = False
        self._prepare()
        if not self._node_key_checked:
            self._check_node_key(file)
            self._node_key_checked = True
        facts = {
            "host": at.node_host or at.host,
            "port": at.node_port or at.port,
            "user": at.user,
            "key": key,
            "host_keys": self._host_keys(),
            "command": self._node_command,
        }
        return NodeAccess("ssh", facts)

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """There are no URLs."""
        raise StoreRefused(f"{self._where} is reached by ssh: there is no URL to {method} {len(keys)} objects")

    def _connect(self) -> ObjectServerClient:
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
        return ObjectServerClient(
            process.stdout,
            process.stdin,
            name=self._where,
            timeout_s=self._settings.timeout_s,
            error_for=lambda reason: self._connection_error(process, complaints, reason),
        )

    def _connection_error(self, process: subprocess.Popen[bytes], complaints: IO[bytes], reason: str) -> StagerError:
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
        return self._ssh_error(process.returncode, said, reason)

    def _ssh_error(self, status: int, said: str, reason: str) -> StagerError:
        line = _last_line(said)
        if status == 255 and _PERMANENT.search(said):
            at = self._settings
            # Why ssh left the key out, rather than what the far end said without it.
            line = next((one for one in said.splitlines() if one.startswith("Load key")), line)
            return StoreRefused(
                f"{self._where} cannot be entered as {at.user}: {line}. Look at key_file {at.key_file}, at "
                f"known_hosts_file {at.known_hosts_file}, and at authorized_keys there"
            )
        return StoreBusy(f"{self._where}: {line or reason}")

    def _prepare_server(self) -> None:
        at = self._settings
        size = str(len(self._program))
        words = ["sh", "-c", _INSTALL_SCRIPT, "sh", at.python, str(at.path), self._file, size, self._digest]
        words += [self._node_file, self._node_key, self._node_line()]
        done = self._run(self._argv(shlex.join(words)), self._program)
        said = done.stderr.decode("utf-8", "replace")
        refusals = {
            64: f"has no {at.python}: install Python 3.11 or newer there, or name it (python)",
            65: f"has a {at.python} older than 3.11: install a newer one there, and name it (python)",
            66: f"has no folder {at.path}: make it, or mount its file system",
            67: f"lets {at.user} write nothing into {at.path}: give it to that user",
        }
        if done.returncode in refusals:
            raise StoreRefused(f"{self._where} {refusals[done.returncode]}")
        if done.returncode == 69:
            raise StoreRefused(
                f"{self._where} lets {at.user} not write ~/.ssh/authorized_keys ({_last_line(said)}): add this line "
                f"there, and no other with this key: {self._node_line()}"
            )
        if done.returncode == 68:
            raise StoreSpaceGone(f"{self._where} took no file of {len(self._program)} bytes: {_last_line(said)}")
        if done.returncode != 0:
            raise self._ssh_error(done.returncode, said, f"a first command ended with status {done.returncode}")
        self._program_checked_at = time.monotonic()

    def _read_node_key(self) -> tuple[Path, str, str]:
        """The file of the nodes' key, its public and its private half. Never a key of the head's."""
        at, file = self._settings, self._settings.node_key_file
        if file is None:
            raise StoreRefused(
                f"the store {self.name} has no node_key_file: nodes need a key of their own, for key_file is a whole "
                f"shell on {self._where}. As burstd's user: ssh-keygen -q -t ed25519 -N '' -f /etc/burstd/node.key; "
                'then node_key_file = "/etc/burstd/node.key"; burstd lets it in there'
            )
        try:
            key = file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreRefused(f"the key that nodes get for {self._where} cannot be read: {error}") from None
        public = self._public_key(file)
        if public == self._public_key(self._key):
            raise StoreRefused(
                f"the node_key_file {file} of the store {self.name} has the same key as its key_file {at.key_file}, "
                "which is a whole shell there: make nodes another with ssh-keygen"
            )
        return file, public, key

    def _public_key(self, file: Path) -> str:
        """``TYPE BASE64`` of a private key without a passphrase."""
        done = self._run(["ssh-keygen", "-y", "-P", "", "-f", str(file)])
        words = done.stdout.decode("ascii", "replace").split()
        if done.returncode != 0 or len(words) < 2:
            said = _last_line(done.stderr.decode("utf-8", "replace"))
            raise StoreRefused(f"{file} cannot be used as a key: {said}")
        return " ".join(words[:2])

    def _node_line(self) -> str:
        """Of authorized_keys; empty where no node has asked yet."""
        command = self._node_command.replace('"', '\\"')
        return f'restrict,command="{command}" {self._node_key} burstd-nodes' if self._node_key else ""

    def _check_node_key(self, file: Path) -> None:
        """That the nodes' key runs the program whatever is asked: another line or another file may let it do more."""
        done = self._run(self._argv(f"exit {_SHELL}", file))
        if done.returncode == 0 and MAGIC in done.stdout:
            return
        said = done.stderr.decode("utf-8", "replace")
        if done.returncode == _SHELL:
            trouble = f"the key {file} that nodes get runs any command on {self._where}"
        elif done.returncode == 255 and _PERMANENT.search(said):
            trouble = f"{self._where} does not take the key {file} that nodes get: {_last_line(said)}"
        else:
            raise self._ssh_error(done.returncode, said, f"the program for nodes ended with status {done.returncode}")
        raise StoreRefused(
            f"{trouble}. See what its sshd reads (AuthorizedKeysFile); this line must be there, and no other with this "
            f"key: {self._node_line()}"
        )

    def _run(self, argv: Sequence[str], body: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        timeout_s = self._settings.timeout_s
        try:
            return subprocess.run(
                argv, input=body, capture_output=True, timeout=timeout_s, check=False, start_new_session=True
            )
        except subprocess.TimeoutExpired:
            raise StoreBusy(f"{self._where}: no answer within {timeout_s:.0f} s") from None
        except OSError as error:
            raise self._no_ssh(error) from None

    def _argv(self, command: str, key: Path | None = None) -> list[str]:
        at = self._settings
        return ssh_argv(
            at.host,
            command,
            user=at.user,
            key_file=str(key or self._key),
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
    node_spec = settings.node_spec
    return LaunchedSshStager(name, cluster, settings, node_spec) if node_spec else SshStager(name, cluster, settings)


plugin = StagerPlugin(name="ssh", settings=SshSettings, make=_make)
