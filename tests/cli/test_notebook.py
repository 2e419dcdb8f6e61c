"""burstctl notebook and code: the script of their job, and from sbatch to the page in the browser."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from burstd.api.auth import Authorizer
from burstd.api.job_connections.ends import WaitService
from burstd.api.job_connections.ports import PortService
from burstd.api.job_connections.server import JobConnectionServer
from burstd.cli.job_programs import CODE, NOTEBOOK, Program, Session, batch_script, parse_session
from burstd.domain.claim import Claim
from burstd.domain.plugins.shell import NotListening, PortConnection, Shell
from burstd.slurm.commands.job_facts import JobFacts
from burstd.transfer.protocol.relay import SocketWire
from tests.api.fake_backend import FakeBackend
from tests.api.world import USER

from .conftest import Run
from .test_ports import CODE as BURSTCTL_CODE
from .test_process import burstctl

TOKEN = "0123456789abcdef" * 3
ENDED = JobFacts("999", "999", USER, 1, 1, "", ("burst",), "FAILED", "127:0", ("gpu1",), "/", "", "")


def script(program: Program, command: str = "", *modules: str) -> str:
    return batch_script(
        Session(program, 23456, TOKEN), idle_s=600, partitions=["burst", "short"], modules=modules, command=command
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder of programs."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def tool(tools: Path, name: str, text: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{text}\n")
    (tools / name).chmod(0o755)


def run_script(text: str, tools: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{tools}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", text], env={"PATH": path, **env}, cwd=tools, capture_output=True, text=True, check=False
    )


def test_jupyter_gets_its_token_from_a_file_that_is_gone_afterwards(tools: Path) -> None:
    tool(tools, "jupyter-server", 'echo "$@"; cat "$JUPYTER_TOKEN_FILE"; stat -c " %a" "${JUPYTER_TOKEN_FILE%/*}"\n'
                                  'echo "$JUPYTER_TOKEN_FILE"; env; exit 3')  # fmt: skip
    done = run_script(script(NOTEBOOK), tools, token="left", JUPYTER_TOKEN="other")
    arguments, token, file, *environment = done.stdout.splitlines()
    assert (done.returncode, token, done.stderr) == (3, f"{TOKEN} 700", "")
    assert {"--ServerApp.port=23456", "--ServerApp.shutdown_no_activity_timeout=600"} < set(arguments.split())
    assert not Path(file).exists()
    assert not [line for line in environment if TOKEN in line or line.startswith(("token=", "JUPYTER_TOKEN="))]


def test_code_server_gets_its_password_from_a_file(tools: Path) -> None:
    shows = '[ "$1" = --help ] || { echo "$@"; cat "$2"; }'
    tool(tools, "code-server", f"{shows}; env | grep PASSWORD")
    done = run_script(script(CODE), tools, PASSWORD="other")
    assert done.stdout.splitlines()[1:] == [
        "bind-addr: 127.0.0.1:23456", "auth: password", f"password: {TOKEN}", "cert: false",
    ]  # fmt: skip
    assert "no limit of idle time" in done.stderr
    assert TOKEN not in done.stdout.splitlines()[0]
    tool(tools, "code-server", f'{shows}; echo "--idle-timeout-seconds"')
    done = run_script(script(CODE), tools)
    assert done.stdout.splitlines()[0].endswith(f" --idle-timeout-seconds 600 {tools}")


def test_modules_are_loaded_and_what_is_missing_is_named(tools: Path) -> None:
    done = run_script(script(NOTEBOOK), tools)
    assert (done.returncode, done.stdout) == (127, "")
    assert "Not on the PATH of this node: jupyter-lab, jupyter-notebook, jupyter-server; say --module" in done.stderr
    tool(tools, "module", 'echo "$@"')
    done = run_script(script(NOTEBOOK, "env A=1 echo begin", "conda/24", "a; b"), tools)
    assert done.stdout.splitlines()[:2] == ["load conda/24", "load a; b"]
    assert done.stdout.splitlines()[2].startswith("begin --no-browser ")


def test_a_session_is_found_again_by_its_script() -> None:
    for program in (NOTEBOOK, CODE):
        assert parse_session(script(program)) == Session(program, 23456, TOKEN)
        assert "\n#SBATCH --partition=burst,short\n" in script(program)
    assert parse_session("#!/bin/bash\nkind=other port=1 token=x\n") is None
    assert Session(NOTEBOOK, 1, "t").address("127.0.0.1", 5) == "http://127.0.0.1:5/?token=t"
    assert Session(CODE, 1, "t").address("127.0.0.1", 5) == "http://127.0.0.1:5/"


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class PageShell:
    """Of a node where a program begins to listen when it was looked for once."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self.dials: list[int] = []

    def dial(self, port: int, _: float) -> PortConnection:
        self.dials.append(port)
        if len(self.dials) == 1:
            raise NotListening("nothing listens so far")
        return SocketWire(socket.create_connection(self._server.server_address[:2]))  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing is kept."""


@pytest.fixture
def shell() -> Iterator[PageShell]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield PageShell(server)
        server.shutdown()
        thread.join()


@pytest.fixture
def slurm(tools: Path, control: Path, backend: FakeBackend, shell: PageShell) -> Iterator[Path]:
    """Slurm's commands for job 101, which runs."""
    tool(tools, "sbatch", 'cat >script; echo "$@" >words; echo 101')
    tool(tools, "scontrol", 'echo "$*" | grep -qx "write batch_script 101 -" && cat script')
    tool(tools, "scancel", 'echo "$@" >cancelled')

    def open_shell(_: Claim) -> Shell:
        return shell  # type: ignore[return-value]

    server = JobConnectionServer(
        control.with_name("jobs.sock"),
        backend,
        Authorizer(""),
        {"port": PortService(backend, open_shell), "wait": WaitService(backend, lambda _: [ENDED], lambda _: [])},
        check_interval_s=0.05,
    )
    server.start()
    yield tools.parent
    server.close()


def begin(slurm: Path, control: Path, *words: str) -> subprocess.Popen[str]:
    code = f"import os; os.chdir({str(slurm)!r}); {BURSTCTL_CODE}"
    return burstctl(control, "--json", *words, code=code, PATH=f"{slurm}/bin:{os.environ['PATH']}")


def answer(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    for line in process.stdout:
        found: dict[str, object] = json.loads(line)
        if "url" in found:
            return found
    raise AssertionError(process.communicate())


def test_from_sbatch_to_the_page_and_again(slurm: Path, control: Path, shell: PageShell) -> None:
    first = begin(slurm, control, "notebook", "-p", "burst", "--keep", "-t", "5", "--dir", "/srv", "--port", "0")
    found = answer(first)
    session = parse_session((slurm / "script").read_text())
    assert session is not None
    assert (slurm / "words").read_text() == "--parsable --chdir=/srv -p burst -t 5\n"
    assert found["url"] == session.address("127.0.0.1", int(str(found["port"])))
    assert (found["job"], found["node"], found["password"], set(shell.dials)) == ("101", "gpu1", "", {session.port})
    assert httpx.get(str(found["url"])).text == f"/?token={session.token}"
    first.send_signal(signal.SIGINT)
    assert first.communicate(timeout=30)[1] == "Job 101 goes on: burstctl notebook --job 101.\n"
    assert (first.returncode, (slurm / "cancelled").exists()) == (130, False)

    again = begin(slurm, control, "notebook", "--job", "101", "--port", "0")
    assert str(answer(again)["url"]).endswith(f"/?token={session.token}")
    again.send_signal(signal.SIGINT)
    assert again.communicate(timeout=30)[1] == "Job 101 is cancelled.\n"
    assert (again.returncode, (slurm / "cancelled").read_text()) == (130, "101\n")


def test_a_job_that_ends_before_it_answers(slurm: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{slurm}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(slurm)
    tool(slurm / "bin", "sbatch", "cat >script; echo '999;ada'")
    tool(slurm / "bin", "scontrol", "cat script")
    done = run("code")
    assert (done.code, done.out) == (1, "Job 999 is submitted.\nJob 999 has ended: FAILED, exit code 127:0\n")
    assert done.err == (
        "burstctl: code did not answer before job 999, or burstd, ended. What the job wrote is in slurm-999.out, and "
        "until its node has gone also here: burstctl job logs 999\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("--idle", "soon"),
            2,
            "burstctl: --idle: 'soon' is no length of time; write 90s, 15m, 2h, 1h30m, 3d or 1w.\n",
        ),
        (("--idle", "1m"), 2, "burstctl: --idle: 2m at least.\n"),
        (
            ("--job", "101", "-t", "5"),
            2,
            "burstctl: --job attaches to a job that is there: leave sbatch's options out.\n",
        ),
        (("--job", "101"), 1, "burstctl: Job 101 is none that you started by burstctl notebook.\n"),
        (("own.sh",), 2, "burstctl: Job 101 was to run a script of yours, and is cancelled: give options only.\n"),
    ],
)
def test_what_is_refused(
    slurm: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.setenv("PATH", f"{slurm}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(slurm)
    tool(slurm / "bin", "scontrol", "echo '#!/bin/sh'")
    done = run("notebook", *words)
    assert (done.code, done.err) == (code, said)
    assert (slurm / "cancelled").exists() == (words == ("own.sh",))
