"""burstd-prolog: which jobs ask burstd, what they say, and that none on premises waits for it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from burstd.slurm.hooks import prolog_client
from burstd.slurm.hooks.stage_server import StageCall, StageReply, StageServer, parse_stage_call

JOB = {
    "SLURM_JOB_ID": "12", "SLURM_JOB_UID": "3001", "SLURM_JOB_USER": "ada", "SLURM_JOB_NODELIST": "gpu[1-2]",
    "SLURM_JOB_PARTITION": "burst",
}  # fmt: skip


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BURSTD_PROLOG_SPOOL", str(tmp_path))
    monkeypatch.setenv("BURSTD_PROLOG_SOCKET", str(tmp_path / "prolog.sock"))
    monkeypatch.setattr("signal.alarm", lambda _seconds: 0)
    # Only the main thread may set a handler.
    monkeypatch.setattr("signal.signal", lambda _number, _handler: None)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    (tmp_path / prolog_client.NODES).write_text("cpu1\ngpu2\n", encoding="utf-8")
    return tmp_path


def test_the_call_names_job_user_and_nodes() -> None:
    call = parse_stage_call(prolog_client.encode_call({**JOB, "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}))
    assert call == StageCall("prolog", "12", 3001, info={"user": "ada", "nodes": "gpu[1-2]", "queue_id": "10_3"})
    assert json.loads(prolog_client.encode_call(JOB))["info"]["queue_id"] == "12"


@pytest.mark.parametrize("nodes", ["gpu3\n", None, b"\xff\xfe"])
def test_jobs_elsewhere_never_ask(spool: Path, nodes: str | bytes | None) -> None:
    file = spool / prolog_client.NODES
    file.unlink()
    if nodes is not None:
        file.write_bytes(nodes if isinstance(nodes, bytes) else nodes.encode())
    assert prolog_client.main() == 0


@pytest.mark.parametrize(("reply", "status"), [(StageReply("ok"), 0), (StageReply("refused", "no sshfs"), 1)])
def test_the_answer_decides(spool: Path, capsys: pytest.CaptureFixture[str], reply: StageReply, status: int) -> None:
    replies = [StageReply("again"), reply]
    server = StageServer(spool / "prolog.sock", lambda _uid: True, lambda _call: replies.pop(0))
    server.start()
    try:
        assert prolog_client.main() == status
    finally:
        server.close()
    assert ("no sshfs" in capsys.readouterr().err) == bool(status)


def test_it_waits_for_a_burstd_that_is_away(spool: Path) -> None:
    path = spool / "prolog.sock"
    # Somebody listens and hangs up, as a burstd that ends does.
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(path))
        dying.listen()
        dying.settimeout(20)
        statuses: list[int] = []
        client = threading.Thread(target=lambda: statuses.append(prolog_client.main()))
        client.start()
        wire, _ = dying.accept()
        wire.close()
    server = StageServer(path, lambda _uid: True, lambda _call: StageReply("ok"))
    server.start()
    client.join(20)
    server.close()
    assert statuses == [0]
