"""A whole site in boxes but for its cloud: a real Slurm cluster, and burstd from the built wheel on its head node."""

from __future__ import annotations

import json
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.domain.cloud.offer import OfferRule, Pool, fabric_features
from burstd.domain.project import Project
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.lab import programs
from tests.lab.cluster import SHOW_SLURM, Cluster
from tests.lab.containers import apptainer
from tests.lab.patience import patience_s
from tests.lab.slurm_files import USERS, cli_filter_lua, job_submit_lua
from tests.lab.ssh_store import DATA, SshStore

JOB_DIR = "/var/spool/burst"
CONFIG = "/etc/burstd/burstd.toml"
LOG = "/var/log/burstd.log"
_PID = "/run/burstd.pid"
_SOCKET = "/run/burstd/control.sock"
_IMAGE_ACCOUNT = ["useradd", "--system", "--shell", "/usr/sbin/nologin", "burstd-image"]
_PATIENCE_S = 10.0


class BaseSite(ABC):
    """One site. ``up`` takes seconds once the root file system, the wheel and what it needs are cached.

    ``settings`` are more lines of burstd.toml. With ``staging`` (more lines of ``[staging]``, or an empty text) jobs'
    data goes through a storage node: one that is there, or with ``launch`` (more lines of its store) one that burstd
    launches in the cloud. ``shared`` is a folder of this machine whose ``home`` and ``burst`` the head and the nodes on
    premises share, as their homes and as staging's ``job_dir``; the head has ``binds`` as well. With ``containers``
    nodes have Apptainer, the head can convert images, and slurmctld has burstd's job_submit.lua, as with
    ``workdir_partitions``, in which every
    batch job's working directory is staged, and with ``brokered``, in which jobs may require machines by their comment.
    sbatch tells at a terminal what jobs of the partitions ``quoted`` meet.
    ``projects`` are Slurm's half of them; the ``onprem`` nodes on premises
    have ``onprem_gpus`` each, of ``onprem_shards`` shards.
    """

    storage_offer = ""
    """What burstd may launch a storage node from, as pools have it."""

    def __init__(
        self,
        release: str = "bookworm",
        *,
        pools: Sequence[Pool],
        users: Mapping[str, int] = USERS,
        settings: str = "",
        comments: bool = False,
        daemon: Mapping[str, object] | None = None,
        extra_conf: str = "",
        staging: str | None = None,
        launch: str | None = None,
        shared: Path | None = None,
        binds: Sequence[BindMount] = (),
        containers: bool = False,
        workdir_partitions: tuple[str, ...] = (),
        brokered: tuple[str, ...] = (),
        quoted: tuple[str, ...] = (),
        image_packages: Sequence[str] = (),
        projects: Sequence[Project] = (),
        onprem: int = 2,
        onprem_gpus: int = 0,
        onprem_shards: int = 0,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self.release = release
        self._staging = staging
        self._launch = launch
        self._shared = shared
        self._binds = tuple(binds)
        self._containers = containers
        self._workdir_partitions = workdir_partitions
        self._brokered = brokered
        self._quoted = quoted
        self._image_packages = tuple(image_packages)
        self._projects = tuple(projects)
        self._onprem = onprem, onprem_gpus, onprem_shards
        self._storage: SshStore | None = None
        self.pools = tuple(pools)
        self.users = users
        self._settings = settings
        self._comments = comments
        self._daemon = {"tick_s": 2.0, "poll_s": 1.0, "cloud_poll_s": 3.0, "orphan_grace_s": 10.0, **(daemon or {})}
        self._extra = extra_conf
        self._progress = progress
        self._burstd: subprocess.Popen[bytes] | None = None
        self.cluster: Cluster

    def __enter__(self) -> Self:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> Self:
        """Brings everything up; returns when burstd answers."""
        rootfs = ensure_rootfs(self.release, progress=self._progress)
        self._progress("building and installing burstd")
        burstd = programs.installed(rootfs)
        image = programs.site_image(rootfs, self.users)
        node_layers = [apptainer(rootfs, self._progress)] if self._containers else []
        shared = _shared_binds(self._shared) if self._shared else ()
        self.cluster = Cluster(
            self.release,
            pools=self.pools,
            users=self.users,
            head_layers=[*node_layers, *burstd],
            head_binds=(*shared, *self._binds),
            onprem_binds=shared,
            onprem_layers=node_layers,
            head_setup=[_IMAGE_ACCOUNT] if self._containers else [],
            head_files=self._slurm_plugins(),
            workdir_partitions=self._workdir_partitions,
            projects=self._projects,
            onprem=self._onprem[0],
            onprem_gpus=self._onprem[1],
            onprem_shards=self._onprem[2],
            programs=f"{programs.PREFIX}/bin",
            extra_conf=self._extra
            + ("\nBurstBufferType=burst_buffer/lua\n" if self._staging is not None else "")
            + ("\nJobSubmitPlugins=lua\n" if self._containers or self._brokered else "")
            + ("\nCliFilterPlugins=lua\n" if self._quoted else ""),
            progress=self._progress,
        )
        self._progress("starting Slurm")
        self.cluster.up()
        self._progress("starting the cloud")
        if self._image_packages:
            node_layers = [programs.image_packages(rootfs, self._image_packages), *node_layers]
        self.start_cloud([*node_layers, image, rootfs.path])
        if self._staging is not None and self._launch is None:
            self._progress("starting the storage node")
            self._start_storage()
        self._progress("starting burstd")
        self.write(CONFIG, self.burstd_toml(), 0o644)
        self.start_burstd()
        self.wait(self.has_looked, _PATIENCE_S, "burstd's first loop")
        return self

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        if hasattr(self, "cluster"):
            if self._burstd is not None:
                self.kill_burstd()
            self.stop_cloud()
            self.cluster.down()
        if self._storage is not None:
            self._storage.down()

    @abstractmethod
    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts the cloud, which boots machines from ``layers``, and gives the head what it needs to speak to it."""

    @abstractmethod
    def stop_cloud(self) -> None:
        """Ends the cloud. May be repeated."""

    @abstractmethod
    def provider_toml(self) -> str:
        """The section ``[providers.NAME]`` of burstd.toml."""

    @abstractmethod
    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """The offers for a pool that names none."""

    @abstractmethod
    def instances(self) -> list[str]:
        """Ids of the cloud's instances that are not terminated."""

    def _slurm_plugins(self) -> tuple[BoxFile, ...]:
        """What docs/admin.md has an administrator put beside slurm.conf."""
        folder = programs.PROJECT / "config" / "slurm"
        names = ("burst_buffer.lua", "burst_buffer.conf") if self._staging is not None else ()
        texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
        if self._containers or self._workdir_partitions or self._projects or self._brokered:
            texts["job_submit.lua"] = job_submit_lua(self._workdir_partitions, self._projects, brokered=self._brokered)
        if self._quoted:
            texts["cli_filter.lua"] = cli_filter_lua(self._quoted)
        return tuple(BoxFile(f"/etc/slurm/{name}", text) for name, text in texts.items())

    def _start_storage(self) -> None:
        self._storage = SshStore(self.cluster.state, lab=self.cluster.lab)
        self._storage.up()
        self.write("/etc/burstd/store.key", self._storage.key.read_text(encoding="ascii"), 0o600)
        self.write("/etc/burstd/node.key", self._storage.node_key.read_text(encoding="ascii"), 0o600)
        self.write("/etc/burstd/known_hosts", self._storage.known_hosts.read_text(encoding="ascii"))

    @property
    def storage(self) -> SshStore:
        """The storage node."""
        assert self._storage is not None, "this site has no staging"
        return self._storage

    def _workdir_toml(self) -> str:
        partitions = json.dumps(self._workdir_partitions)
        return f"[staging.workdir]\npartitions = {partitions}\n" if self._workdir_partitions else ""

    def _staging_toml(self) -> str:
        if self._staging is None:
            return ""
        more = self._workdir_toml()
        table = f'[staging]\nstore = "storage"\n{self._staging}\n{more}[staging.stores.storage]\nkind = "ssh"\n'
        if self._launch is not None:
            return f'{table}launch = [{self.storage_offer}]\npath = "{DATA}"\n{self._launch}\n'
        return (
            f'{table}host = "{self.storage.address}"\nuser = "{self.storage.user}"\n'
            'key_file = "/etc/burstd/store.key"\nnode_key_file = "/etc/burstd/node.key"\n'
            f'known_hosts_file = "/etc/burstd/known_hosts"\npath = "{DATA}"\n'
        )

    def burstd_toml(self) -> str:
        """The settings of this site's burstd."""
        daemon = "".join(f"{key} = {json.dumps(value)}\n" for key, value in self._daemon.items())
        pools = "".join(_pool_toml(pool, pool.rules or self.rules_of(pool)) for pool in self.pools)
        slurm = (
            f'conf_server = "10.77.0.2"\nprograms = "{programs.PREFIX}/bin"\nkeep_partitions = ["onprem"]\n'
            "resume_timeout_s = 60\nsuspend_timeout_s = 5\n"
            # Scripts of tests tell what they see by their job's comment.
            f"comments = {json.dumps(self._comments)}\n"
        )
        return (
            f'cluster = "lab"\n[daemon]\n{daemon}[slurm]\n{slurm}{pools}'
            f"{self.provider_toml()}{self._staging_toml()}{self._settings}\n"
        )

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file of the head, whole or not at all."""
        script = 'mkdir -p "$(dirname "$1")" && umask 077 && cat >"$1.new" && chmod "$2" "$1.new" && mv "$1.new" "$1"'
        self.cluster.head.run(["sh", "-c", script, "sh", path, f"{mode:o}"], input=text)

    @property
    def log(self) -> Path:
        """What burstd has said, on this machine."""
        return self.cluster.head.path(LOG)

    def start_burstd(self, timeout_s: float = 90.0) -> None:
        """Starts burstd and returns when it answers."""
        self.spawn_burstd()
        begun = time.monotonic()
        while not self.api_answers():
            if not self.burstd_runs() or time.monotonic() - begun > patience_s(timeout_s):
                raise AssertionError(f"burstd did not come up: {self.daemon_log()[-3000:]}")
            time.sleep(0.05)

    def burstd_runs(self) -> bool:
        """Whether the process that was started last is there."""
        return self._burstd is not None and self._burstd.poll() is None

    def api_answers(self) -> bool:
        """Whether the control interface answers."""
        try:
            self.api("/v1/status")
        except (httpx.HTTPError, OSError):
            return False
        return True

    def has_looked(self) -> bool:
        """Whether burstd has read the queue: from then on SlurmUser's hooks reach it."""
        try:
            self.api("/v1/nodes")
        except httpx.HTTPStatusError:
            return False
        return True

    def spawn_burstd(self) -> None:
        """Starts burstd and does not wait for it."""
        self.cluster.head.run(["mkdir", "-p", "/var/lib/burstd", "/run/burstd", "/var/spool/burstd"])
        self.cluster.head.path(_PID).unlink(missing_ok=True)
        words = [f"{programs.PREFIX}/bin/burstd", "--config", CONFIG]
        self._burstd = self.cluster.head.popen(
            ["sh", "-c", f'echo $$ >{_PID}.new; mv {_PID}.new {_PID}; exec "$@" >>{LOG} 2>&1', "sh", *words]
        )
        begun = time.monotonic()
        while not self.cluster.head.path(_PID).exists():
            if time.monotonic() - begun > patience_s(_PATIENCE_S):
                raise AssertionError("the shell that starts burstd did not come up")
            time.sleep(0.005)

    def daemon_log(self) -> str:
        """burstd's log so far."""
        return self.cluster.sh(f"cat {LOG}", check=False)

    def kill_burstd(self, signal: str = "KILL") -> None:
        """Ends burstd with a signal and waits until it is gone."""
        if self._burstd is not None:
            self.signal_burstd(signal)
            self._burstd.wait(30)
            self._burstd = None

    def signal_burstd(self, signal: str) -> None:
        """Sends burstd a signal."""
        self.cluster.head.run(["sh", "-c", f"kill -{signal} $(cat {_PID})"], check=False)

    def burstctl(self, *words: str, user: str = "root", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs burstctl on the head."""
        return self.cluster.head.run([f"{programs.PREFIX}/bin/burstctl", *words], user=user, check=check, timeout=60)

    def burstctl_json(self, *words: str) -> Any:
        """What ``burstctl ... --json`` answers."""
        return json.loads(self.burstctl(*words, "--json").stdout)

    def burstctl_in_process(self, *words: str) -> str:
        """The words that burstctl prints, a space between, wherever its lines end.

        It runs in this process: for a question that is asked until the answer is right.
        """
        done = CliRunner().invoke(app, ["--socket", str(self.cluster.head.path(_SOCKET)), *words])
        return " ".join(done.stdout.split())

    def api(self, path: str, **params: str | float) -> Any:
        """What the control interface answers to root."""
        socket = self.cluster.head.path(_SOCKET)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket), verify=False), base_url="http://burstd"
        ) as client:
            answer = client.get(path, params=params, timeout=30.0)
        answer.raise_for_status()
        return answer.json()

    def submit(self, words: str, script: str = "sleep 1", user: str = "ada") -> str:
        """``sbatch`` as an ordinary user; the job's id."""
        done = self.cluster.head.run(
            ["sbatch", "--parsable", *words.split(), "--wrap", script], user=user, cwd=f"/home/{user}", check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip().split(";")[0]

    def submit_script(self, script: str, words: str = "", user: str = "ada") -> str:
        """``sbatch`` of a whole script, directives and all, from its standard input; the job's id."""
        done = self.cluster.head.run(
            ["sbatch", "--parsable", *words.split()], user=user, cwd=f"/home/{user}", input=script, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip().split(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """``scontrol show job`` of a job, or its first task, as words."""
        text = self.cluster.sh(f"scontrol -o show job {job_id}", check=False)
        line = text.splitlines()[0] if text.splitlines() else ""
        return {key: value for key, _, value in (word.partition("=") for word in line.split()) if value}

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Returns when the condition holds. ``timeout_s``: on a quiet machine; a busy one is given more."""
        begun = time.monotonic()
        while not condition():
            waited_s = time.monotonic() - begun
            if waited_s > patience_s(timeout_s):
                slurm = self.cluster.sh(SHOW_SLURM, check=False)
                status = self.burstctl("status", check=False).stdout
                raise AssertionError(
                    f"not within {waited_s:.0f} s: {what}\n{slurm}\n{status}\n{self.daemon_log()[-4000:]}"
                )
            time.sleep(0.2)

    def wait_job(self, job_id: str, states: Sequence[str] = ("COMPLETED",), timeout_s: float = 60.0) -> None:
        """Returns when the job is in one of these states."""
        self.wait(lambda: self.job(job_id).get("JobState") in states, timeout_s, f"job {job_id} {'/'.join(states)}")

    def wait_empty(self, timeout_s: float = 90.0) -> None:
        """Returns when the cloud has no machine any more and no claim is live."""
        self.wait(
            lambda: not self.instances() and not self.api("/v1/nodes")["nodes"], timeout_s, "no machine, no claim"
        )


def _shared_binds(folder: Path) -> tuple[BindMount, ...]:
    for name, uid in USERS.items():
        home = folder / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        os.chown(home, uid, uid)
    (folder / "burst").mkdir(exist_ok=True)
    (folder / "burst").chmod(0o1777)
    return BindMount(folder / "home", "/home", read_only=False), BindMount(folder / "burst", JOB_DIR, read_only=False)


def _pool_toml(pool: Pool, rules: Sequence[OfferRule]) -> str:
    gres = f'gres = "{",".join(map(str, pool.shape.gres))}"\n' if pool.shape.gres else ""
    gres += f'gpu_memory_limit = "{pool.gpu_memory_limit}"\n' if pool.gpu_memory_limit != "none" else ""
    gres += "cpu_jobs = true\n" if pool.shape.gpus() else ""
    frameworks = [framework.name for framework in pool.frameworks]
    gres += f"frameworks = {json.dumps(frameworks)}\n" if frameworks else ""
    if pool.fabric:
        gres += f'fabric = "{pool.fabric}"\n'
    if test := pool.fabric_test:
        gres += (
            f'fabric_test = "{test.command}"\nfabric_test_limit_s = {test.limit_s}\nfabric_min_gb_s = {test.min_gb_s}\n'
        )
    features = sorted(pool.shape.features.difference(frameworks, fabric_features(pool.fabric)))
    return (
        f'[pools.{pool.name}]\nnodes = "{",".join(pool.slots)}"\npartitions = {json.dumps(pool.partitions)}\n'
        f"cpus = {pool.shape.cpus}\nmemory = {pool.shape.memory_mib}\n{gres}"
        f"features = {json.dumps(features)}\noffers = [{', '.join(map(_rule_toml, rules))}]\n"
    )


def _rule_toml(rule: OfferRule) -> str:
    lists = {"instance_types": rule.instance_types, "zones": rule.zones, "markets": rule.markets}
    words = "".join(f", {key} = {json.dumps(value)}" for key, value in lists.items() if value)
    return f'{{ provider = "{rule.provider}", image = "{rule.image}"{words} }}'
