"""The control socket: bound by ourselves or passed by systemd's own socket activation, and the lock."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burstd.runtime.sockets import (
    AlreadyRunning,
    PeerCredentials,
    SocketFailed,
    listen,
    peer_credentials,
    single_instance,
)


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


def _connected(path: Path) -> socket.socket | None:
    """None: nobody listens there yet, though the file may be there."""
    try:
        return connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return None


def test_anyone_may_connect_and_is_known_by_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    before = os.umask(0o077)
    try:
        listener = listen(path, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    with listener, connect(path), listener.accept()[0] as server:
        assert peer_credentials(server) == PeerCredentials(os.geteuid(), os.getegid(), os.getpid())


def test_a_dead_socket_is_replaced_and_a_live_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    listen(path, {}).close()  # the file stays, as after kill -9
    assert path.is_socket()
    with listen(path, {}) as listener:
        with pytest.raises(AlreadyRunning, match=r"another burstd listens on .*control\.sock"):
            listen(path, {})
        with connect(path), listener.accept()[0]:
            pass


def test_a_live_one_with_a_full_queue_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with listen(path, {}, backlog=0), connect(path), pytest.raises(AlreadyRunning):
        listen(path, {})


def test_what_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("someone's", encoding="utf-8")
    with pytest.raises(SocketFailed, match="is no socket"):
        listen(path, {})
    assert path.read_text(encoding="utf-8") == "someone's"


@pytest.mark.parametrize(
    ("path", "message"),
    [("missing/control.sock", "Make the directory"), ("x" * 120, "too long for a unix socket")],
)
def test_a_path_that_cannot_be(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(SocketFailed, match=message):
        listen(tmp_path / path, {})


def test_descriptors_for_another_process_are_not_ours(tmp_path: Path) -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control", "OTHER": "stays"}
    with listen(tmp_path / "control.sock", environ) as listener:
        assert listener.getsockname() == str(tmp_path / "control.sock")
    assert environ == {"OTHER": "stays"}


ACTIVATED = """
import os
from pathlib import Path
from burstd.runtime.sockets import listen, peer_credentials
listener = listen(Path("/nonexistent/control.sock"))
assert not any(name.startswith("LISTEN_") for name in os.environ)
assert not listener.get_inheritable()
connection, _ = listener.accept()
connection.sendall(f"{listener.getsockname()} {peer_credentials(connection).uid}".encode())
"""


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not installed")
@pytest.mark.parametrize("name", ["control", None])
def test_the_socket_of_systemd_is_taken(tmp_path: Path, name: str | None) -> None:
    path = tmp_path / "control.sock"
    named = [] if name is None else [f"--fdname={name}"]
    argv = [
        "systemd-socket-activate",
        f"--listen={path}",
        *named,
        "--setenv=PYTHONPATH",
        sys.executable,
        "-c",
        ACTIVATED,
    ]
    activation = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        deadline = time.monotonic() + 10
        while (client := _connected(path)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with client:
            assert client.recv(1000).decode() == f"{path} {os.geteuid()}"
        assert activation.wait(10) == 0
    finally:
        activation.kill()
        activation.wait()


def test_a_second_burstd_is_told_who_is_there_and_starts_once_the_first_is_gone(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from burstd.runtime.sockets import single_instance\n"
    script += "lock = single_instance(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    with pytest.raises(AlreadyRunning, match=rf"process {first.pid}\) works on {tmp_path}"):
        single_instance(tmp_path)
    first.kill()
    first.wait()
    lock = single_instance(tmp_path)
    with pytest.raises(AlreadyRunning):
        single_instance(tmp_path)
    lock.release()
    single_instance(tmp_path).release()


def test_a_state_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketFailed, match="Make the directory"):
        single_instance(tmp_path / "missing")
