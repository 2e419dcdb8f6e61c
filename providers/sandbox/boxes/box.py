"""A box: a 'host' with a root file system, a name, an address, processes and devices of its own, on this machine.

Not a security boundary: root in a box is root of this machine's kernel.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from providers.sandbox.boxes.boot.boot_script import BOOTED, RUN_DIR, base_files, boot_script, cloud_init_files
from providers.sandbox.boxes.boot.description import ENVIRONMENT, BindMount, BoxDescription, BoxFile, start_init
from providers.sandbox.boxes.boot.init import FORBIDDEN_CAPABILITIES
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.machine import remove_tree, tool_path
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.boxes.processes import Process

_POLL_S, _MAX_POLL_S = 0.02, 0.2
# Parents of process 1 of the boxes that this process started, to be reaped.
_children: dict[Path, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What a box is to be.

    ``name`` is unique in the lab; ``hostname`` is the same unless given. ``layers``: the topmost first, a root file
    system last. ``user_data``: run by cloud-init when it is given.
    ``ssh``: False for a host on which sshd never answers. ``services``: commands run in turn at the end of the boot,
    each returning when it is up. ``files`` are written before the boot; ``disk_mib`` bounds all that is written.
    """

    name: str
    address: str
    layers: Sequence[Path]
    gpus: int = 0
    user_data: str | None = None
    meta_data: Mapping[str, object] = field(default_factory=dict)
    services: Sequence[Sequence[str]] = ()
    binds: Sequence[BindMount] = ()
    files: Sequence[BoxFile] = ()
    ssh: bool = True
    disk_mib: int = 2048
    hostname: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A box that was started. All its state is in ``directory``, so any later process can take it up again."""

    name: str
    address: str
    network: LabNetwork
    directory: Path

    @classmethod
    def start(cls, network: LabNetwork, boxes: Path, spec: BoxSpec) -> Box:
        """Starts a box of its own directory in ``boxes``; returns when its root stands and it boots.

        Raises BoxFailed (also when a box of that name is there), NetworkFailed, MissingTool.
        """
        directory = boxes / spec.name
        boxes.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            raise BoxFailed(f"there is a box {spec.name} already", "stop it first") from None
        box = cls(spec.name, spec.address, network, directory.resolve())
        try:
            box._save()
            box._launch(spec)
        except BaseException:
            box.stop()
            raise
        return box

    def _launch(self, spec: BoxSpec) -> None:
        hostname = spec.hostname or spec.name
        files = base_files(hostname, spec.address)
        if spec.user_data is not None:
            files += cloud_init_files(hostname, spec.user_data, spec.meta_data)
        files += [boot_script(spec.services, ssh=spec.ssh, cloud_init=spec.user_data is not None), *spec.files]
        description = BoxDescription(
            layers=spec.layers,
            scratch=self.directory / "root",
            console=self.directory / "console.log",
            record=self.directory / "process.json",
            hostname=hostname,
            disk_mib=spec.disk_mib,
            gpus=spec.gpus,
            binds=spec.binds,
            files=files,
            boot=f"{RUN_DIR}/boot",
        )
        network = self.network.attach(spec.name, spec.address)
        with (self.directory / "start.log").open("wb") as log:
            _children[self.directory] = start_init(description, network, log)

    def _save(self) -> None:
        state = {"name": self.name, "address": self.address, "network": asdict(self.network)}
        (self.directory / "box.json").write_text(json.dumps(state), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Box | None:
        """The box of a directory, running or not; None where its maker did not get so far."""
        try:
            state = json.loads((directory / "box.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return cls(state["name"], state["address"], LabNetwork(**state["network"]), directory.resolve())

    @property
    def process(self) -> Process | None:
        """Process 1 as the machine sees it, None when it was never there."""
        return Process.load(self.directory / "process.json")

    @property
    def alive(self) -> bool:
        """Whether its process 1 runs."""
        child = _children.get(self.directory)
        if child is not None:
            child.poll()
        process = self.process
        return process is not None and process.alive

    @property
    def booted(self) -> bool:
        """Whether its boot script, cloud-init and services included, has come to its end."""
        return self.path(BOOTED).exists()

    def path(self, inside: str) -> Path:
        """A file of the box, seen from the machine; only while the box is alive. Raises BoxFailed."""
        return Path(f"/proc/{self._pid()}/root") / inside.lstrip("/")

    def console(self) -> str:
        """All that was written to its console, empty before there is any."""
        try:
            return (self.directory / "console.log").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def listening(self, port: int) -> bool:
        """Whether something in the box listens on a TCP port."""
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self._pid()}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    return True
        return False

    def wait(self, condition: Callable[[Box], bool], timeout_s: float, what: str) -> None:
        """Returns when ``condition(box)`` holds. Raises BoxFailed when the box dies or the time is over."""
        begun = time.monotonic()
        deadline = begun + timeout_s
        while not condition(self):
            if (looked := time.monotonic()) > deadline:
                last = " | ".join(self.console().splitlines()[-3:])
                raise BoxFailed(
                    f"{self.name} was not {what} within {timeout_s:.0f} s; its console ends with: {last}",
                    "look at its console",
                )
            # A condition that runs commands must not take the processor from what it waits for.
            time.sleep(min(max(_POLL_S, 4 * (looked - begun)), _MAX_POLL_S))
            begun = time.monotonic()

    def wait_ssh(self, timeout_s: float = 30.0) -> None:
        """Returns when sshd answers."""
        self.wait(lambda box: box.listening(22), timeout_s, "reachable by ssh")

    def wait_booted(self, timeout_s: float = 60.0) -> None:
        """Returns when the boot script has ended."""
        self.wait(lambda box: box.booted, timeout_s, "booted")

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        timeout: float | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the box, with text output. ``env`` adds to a plain environment; ``timeout`` in seconds.

        Raises BoxFailed, and what ``subprocess.run`` raises.
        """
        words, environment = self._command(argv, user, env, cwd)
        return subprocess.run(
            words, input=input, capture_output=True, text=True, env=environment, timeout=timeout, check=check
        )

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts a command in the box; it ends when it is killed here, and when the box does. Raises BoxFailed."""
        words, environment = self._command(argv, user, env, cwd)
        return subprocess.Popen(words, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)

    def _command(
        self, argv: Sequence[str], user: str, env: Mapping[str, str] | None, cwd: str
    ) -> tuple[list[str], dict[str, str]]:
        pid = self._pid()
        identity = _identity(Path(f"/proc/{pid}/root/etc"), user)
        words = [tool_path("nsenter"), f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]
        words += ["setpriv", *identity.setpriv, "--pdeathsig=KILL"]
        words += ["--bounding-set=" + ",".join(f"-{c}" for c in FORBIDDEN_CAPABILITIES)]
        words += ["env", f"--chdir={cwd}", *argv]
        environment = {**ENVIRONMENT, "HOME": identity.home, "USER": user, "LOGNAME": user, **(env or {})}
        return words, environment

    def _pid(self) -> int:
        process = self.process
        if process is None or not process.alive:
            raise BoxFailed(f"the box {self.name} does not run", "look at its console")
        return process.pid

    def stop(self) -> None:
        """Ends every process of the box and removes all of it, its directory too. May be repeated."""
        self._kill()
        child = _children.pop(self.directory, None)
        if child is not None:
            child.wait()
        self.network.detach(self.name)
        self._kill()  # one that was only about to be recorded when its maker was killed
        remove_tree(self.directory)

    def _kill(self) -> None:
        process = self.process
        if process is not None:
            process.kill()


@dataclass(frozen=True, slots=True)
class _Identity:
    setpriv: list[str]
    home: str


def _identity(etc: Path, user: str) -> _Identity:
    """How to become a user of the box, in numbers: the names are the box's, not the machine's."""
    rows = (etc / "passwd").read_text(encoding="utf-8").splitlines()
    entry = next((row.split(":") for row in rows if row.split(":")[0] == user), None)
    if entry is None:
        raise BoxFailed(f"there is no user {user} in the box", "useradd it first")
    groups = {int(entry[3])}
    for row in (etc / "group").read_text(encoding="utf-8").splitlines():
        fields = row.split(":")
        if len(fields) == 4 and user in fields[3].split(","):
            groups.add(int(fields[2]))
    numbers = ",".join(map(str, sorted(groups)))
    return _Identity([f"--reuid={entry[2]}", f"--regid={entry[3]}", f"--groups={numbers}"], entry[5])


def find_boxes(boxes: Path) -> list[Box]:
    """The boxes whose directories are in ``boxes``, dead ones too, by name."""
    if not boxes.is_dir():
        return []
    found = (Box.load(directory) for directory in sorted(boxes.iterdir()))
    return [box for box in found if box is not None]
