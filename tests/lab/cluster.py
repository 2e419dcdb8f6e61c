"""A real Slurm cluster in boxes: a head, nodes on premises, and a burst partition of CLOUD slots.

``with Cluster("trixie") as cluster: cluster.sh("sinfo")``, or ``python -m tests.lab.cluster up --state DIR``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from burstd.domain.cloud.offer import Pool
from burstd.domain.project import Project
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import read_partitions
from burstd.slurm.config.project_check import read_features
from burstd.slurm.config.projects import project_partition_lines, sacctmgr_commands
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.images.rootfs import Rootfs, ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.lab import accounting, slurm_files
from tests.lab.patience import patience_s

_PROJECT = Path(__file__).parents[2]
_HEAD = "10.77.0.2"
SHOW_SLURM = "squeue | head -40; sinfo -R; sinfo -N; scontrol show res; tail -n 30 /var/log/slurm/slurmctld.log"
_POWER_CLIENT = "/opt/burstd-power/power_client.py"


class Cluster:
    """One cluster. ``up`` takes seconds once the release's root file system is cached.

    ``head_layers`` are laid over the head's root file system, the topmost first; with ``programs`` the folder where
    they have burstd's console scripts, else the head gets plain scripts around burstd/slurm/hooks/power_client.py.
    ``onprem_layers`` are laid over that of the nodes on premises. ``head_setup`` are commands of the head before
    slurmctld starts, ``extra_conf`` more lines of slurm.conf. Nodes on premises have ``onprem_gpus`` fake GPUs
    each, of ``onprem_shards`` shards. With ``projects`` the head has slurmdbd, what the projects need of Slurm is
    there, and all users are in all of their accounts.
    Everything ends with ``down``, at the end of ``with``, or when this process ends in any way, unless ``keep``.
    """

    def __init__(
        self,
        release: str = "bookworm",
        *,
        state: Path | None = None,
        pools: Sequence[Pool] = (),
        users: Mapping[str, int] = slurm_files.USERS,
        onprem: int = 2,
        onprem_gpus: int = 0,
        onprem_shards: int = 0,
        projects: Sequence[Project] = (),
        head_layers: Sequence[Path] = (),
        head_binds: Sequence[BindMount] = (),
        onprem_binds: Sequence[BindMount] = (),
        onprem_layers: Sequence[Path] = (),
        head_files: Sequence[BoxFile] = (),
        head_setup: Sequence[Sequence[str]] = (),
        programs: str = "",
        extra_conf: str = "",
        workdir_partitions: tuple[str, ...] = (),
        keep: bool = False,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self.release = release
        self.pools = tuple(pools) or (slurm_files.burst_pool(),)
        self.onprem = [(f"op{i}", f"10.77.0.{10 + i}") for i in range(1, onprem + 1)]
        self.state = state or Path(tempfile.mkdtemp(prefix="burstd-cluster-"))
        self.lab = Lab.open(self.state) or Lab(self.state, LabNetwork(f"c{secrets.token_hex(4)}"))
        self._onprem_gpus = onprem_gpus
        self._onprem_shards = onprem_shards
        self._projects = tuple(projects)
        self._users = tuple(users)
        self._prepare = slurm_files.prepare(users)
        self._head_layers = tuple(head_layers)
        self._head_binds = tuple(head_binds)
        self._onprem_binds = tuple(onprem_binds)
        self._onprem_layers = tuple(onprem_layers)
        self._head_files = tuple(head_files)
        self._head_setup = tuple(head_setup)
        self._programs = programs
        self._extra = extra_conf
        self._workdir_partitions = workdir_partitions
        self._keep = keep
        self._progress = progress
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._rootfs: Rootfs | None = None

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

    @property
    def rootfs(self) -> Rootfs:
        """The release's root file system, built when it is not cached."""
        if self._rootfs is None:
            self._rootfs = ensure_rootfs(self.release, progress=self._progress)
        return self._rootfs

    @property
    def head(self) -> Box:
        """The head node."""
        return self.lab.box("head")

    def up(self) -> Self:
        """Starts head and on-premise nodes; returns when slurmctld answers and the nodes are registered."""
        layers = [*self._head_layers, self.rootfs.path]
        if self._projects:
            layers.insert(0, accounting.accounting_layer(self.rootfs))
        if not self._keep:
            self._start_watchdog()
        self.lab.up()
        key = secrets.token_bytes(128)
        (self.state / "munge.key").touch(mode=0o600)
        (self.state / "munge.key").write_bytes(key)
        # slurmctld switches power saving off for good where ResumeProgram is not there when it starts.
        dbd = accounting.SETUP if self._projects else ()
        services = [self._prepare, slurm_files.MUNGED, *self._head_setup, *dbd, ["slurmctld"]]
        self.lab.start(
            BoxSpec(
                "head",
                _HEAD,
                layers,
                services=services,
                files=[*self._common_files(), *self._conf_files(), *self._head_files],
                binds=[*self._program_binds(), *self._head_binds],
            )
        )
        for name, address in self.onprem:
            self.boot_machine(name, address, self._onprem_gpus, self._onprem_binds, self._onprem_layers)
        self.head.wait_booted()
        self._wait_slurmctld()
        self._add_projects()
        for name, _ in self.onprem:
            self.start_slurmd(name)
        names = ",".join(name for name, _ in self.onprem)
        self.wait(lambda: set(self.sh(f"sinfo -hN -n {names} -o %t").split()) == {"idle"}, 30, "its nodes idle")
        return self

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        self.lab.down()
        shutil.rmtree(self.state, ignore_errors=True)
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait(30)
            self._watchdog = None

    def _start_watchdog(self) -> None:
        """A process that takes the lab down when this one is gone, however it went."""
        words = [sys.executable, "-m", "tests.lab.cluster", "--state", str(self.state), "guard"]
        self._watchdog = subprocess.Popen(
            words, stdin=subprocess.PIPE, cwd=_PROJECT, start_new_session=True, env={**os.environ, "PYTHONPATH": "."}
        )

    def sh(self, command: str, user: str = "root", *, check: bool = True, timeout_s: float = 60.0) -> str:
        """Runs a shell command on the head; its output. Raises AssertionError with what it said when it fails."""
        home = "/root" if user == "root" else f"/home/{user}"
        done = self.head.run(["bash", "-c", command], user=user, cwd=home, check=False, timeout=timeout_s)
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Returns when the condition holds. Raises BoxFailed when the time is over or the head died."""
        try:
            self.head.wait(lambda _box: condition(), patience_s(timeout_s), f"showing {what}")
        except BoxFailed as error:
            error.add_note(self.sh(SHOW_SLURM, check=False))
            raise

    def stop_slurmctld(self) -> None:
        """Ends slurmctld as ``systemctl stop`` does."""
        # After a reconfiguration Debian's is called slurmctld-wlm.
        self.head.run(["pkill", "-TERM", "^slurmctld"], check=False)
        self.wait(lambda: self.head.run(["pgrep", "^slurmctld"], check=False).returncode == 1, 30, "no slurmctld")

    def start_slurmctld(self, *options: str) -> None:
        """Starts slurmctld and returns when it answers."""
        self.head.run(["slurmctld", *options])
        self._wait_slurmctld()

    def restart_slurmctld(self, *options: str) -> None:
        """Ends and starts slurmctld; ``-c`` forgets its state."""
        self.stop_slurmctld()
        self.start_slurmctld(*options)

    def commands(self) -> SlurmCommands:
        """Slurm's commands, run on the head."""
        return SlurmCommands(lambda argv, env, timeout_s: self.head.run(argv, env=env, timeout=timeout_s, check=False))

    def _add_projects(self) -> None:
        """As docs/admin.md has an administrator do it."""
        if not self._projects:
            return
        partitions, version = read_partitions(self.commands()), slurm_files.VERSIONS[self.release]
        commands = [c for project in self._projects for c in sacctmgr_commands(project, partitions, version)]
        accounts = ",".join(project.account for project in self._projects)
        commands += [("sacctmgr", "-i", "add", "user", ",".join(self._users), f"account={accounts}")]
        features = read_features(self.commands(), self._projects)
        lines = project_partition_lines(self._projects, partitions, features)
        with self.head.path("/etc/slurm/slurm.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{line}\n" for line in lines)
        self.sh(" && ".join(shlex.join(command) for command in [*commands, ("scontrol", "reconfigure")]))

    def _wait_slurmctld(self) -> None:
        self.wait(lambda: self.head.run(["sinfo", "-h"], check=False).returncode == 0, 30, "slurmctld answering")

    def address_of(self, slot: str) -> str:
        """The address that a slot's machine gets in this lab."""
        slots = [s for p in self.pools for s in p.slots]
        index = slots.index(slot)
        return f"10.77.{1 + index // 250}.{1 + index % 250}"

    def boot_machine(
        self, name: str, address: str, gpus: int = 0, binds: Sequence[BindMount] = (), layers: Sequence[Path] = ()
    ) -> Box:
        """Starts a box that is ready for slurmd: the cluster's users and munge key, a name for the head."""
        services = [self._prepare, slurm_files.MUNGED]
        spec = BoxSpec(
            name, address, [*layers, self.rootfs.path], gpus=gpus, services=services, files=self._common_files(),
            ssh=False, binds=list(binds),
        )  # fmt: skip
        return self.lab.start(spec)

    def boot_slots(self, slots: Sequence[str]) -> None:
        """Starts boxes for slots of the burst partition, without slurmd."""
        pool_of = {slot: pool for pool in self.pools for slot in pool.slots}
        boxes = [self.boot_machine(s, self.address_of(s), pool_of[s].shape.gpus()) for s in slots]
        for box in boxes:
            box.wait_booted()

    def start_slurmd(self, name: str) -> None:
        """Starts slurmd in a box under the box's name."""
        box = self.lab.box(name)
        box.wait_booted()
        box.run(slurm_files.slurmd(name), timeout=60)

    def kill_machine(self, name: str) -> None:
        """Ends a box as a power cut would."""
        self.lab.box(name).stop()

    def _common_files(self) -> list[BoxFile]:
        return [
            BoxFile("/etc/munge/munge.key", (self.state / "munge.key").read_bytes(), 0o400, "munge:munge"),
            BoxFile("/etc/hosts", slurm_files.hosts([("head", _HEAD), *self.onprem])),
        ]

    def _conf_files(self) -> list[BoxFile]:
        conf = slurm_files.slurm_conf(
            self.release, self.pools, self.onprem, _HEAD, self._programs or "/usr/local/bin",
            f"{self._extra}\n{accounting.SLURM_CONF if self._projects else ''}",
            self._workdir_partitions, self._onprem_gpus, self._projects, self._onprem_shards,
        )  # fmt: skip
        gres = slurm_files.gres_text(self.release, self.pools)
        gres += slurm_files.onprem_gres_text(self.onprem, self._onprem_gpus, self._onprem_shards)
        files = [
            BoxFile("/etc/slurm/slurm.conf", conf),
            BoxFile("/etc/slurm/gres.conf", gres),
            *(accounting.FILES if self._projects else ()),
        ]
        cgroup = slurm_files.cgroup_text(self.release)
        if cgroup is not None:
            files.append(BoxFile("/etc/slurm/cgroup.conf", cgroup))
        if not self._programs:
            for kind in ("resume", "suspend", "resumefail"):
                script = f'#!/bin/sh\nexec /usr/bin/python3 -SE {_POWER_CLIENT} {kind} "$@"\n'
                files.append(BoxFile(f"/usr/local/bin/burstd-{kind}", script, 0o755))
        return files

    def _program_binds(self) -> list[BindMount]:
        return [] if self._programs else [BindMount(_PROJECT / "burstd/slurm/hooks/power_client.py", _POWER_CLIENT)]


def main(argv: Sequence[str] | None = None) -> int:
    """``up``, ``down``, ``sh``, ``boot``, ``guard``."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.cluster", description=__doc__)
    parser.add_argument("what", choices=["up", "down", "sh", "boot", "guard"])
    parser.add_argument("words", nargs=argparse.REMAINDER, help="sh: the command; boot: slots")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--release", default="bookworm", choices=sorted(slurm_files.VERSIONS))
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--user", default="root")
    args = parser.parse_args(argv)
    if args.what == "guard":
        sys.stdin.buffer.read()
        lab = Lab.open(args.state)
        if lab is not None:
            lab.down()
        shutil.rmtree(args.state, ignore_errors=True)
        return 0
    cluster = Cluster(
        args.release, state=args.state, pools=[slurm_files.burst_pool(args.slots)], keep=True, progress=print
    )
    if args.what == "up":
        args.state.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.callback(cluster.down)
            cluster.up()
            stack.pop_all()
    elif args.what == "down":
        cluster.down()
    elif args.what == "boot":
        cluster.boot_slots(args.words)
        for slot in args.words:
            cluster.start_slurmd(slot)
    else:
        print(cluster.sh(" ".join(args.words), args.user, check=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
