"""A real OpenStack for tests, but for its hypervisor: keystone, placement, glance, neutron, nova and cinder.

with ControlPlane() as cloud:
    project = cloud.project("physics")
    with cloud.reach(), project.connect() as client:
        client.compute.servers()

Servers are records, and ACTIVE at once; with ``machines``, a unix socket, something boots for them:
drivers/burstd_virt.py has the protocol. ``python -m tests.lab.openstack.plane`` keeps one up for people.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.lab.guard import LabWatchdog
from tests.lab.kept import ProcessSupervisor, SupervisedPlane
from tests.lab.openstack import conf, template
from tests.lab.openstack.conf import Parameters
from tests.lab.openstack.projects import Project, make_project
from tests.lab.openstack.services import Services
from tests.node.conftest import on_network


class ControlPlane(SupervisedPlane):
    """One OpenStack, with state of its own, in the network of a lab: of its own or, with ``lab``, of that one.

    Nothing outside that network reaches it: enter it with ``reach``. Everything ends, and is removed, at the end of
    ``with`` or when this process ends in any way.
    """

    auth_url = f"http://{conf.HOST}:{conf.KEYSTONE}/v3"

    def __init__(
        self,
        *,
        lab: Lab | None = None,
        machines: Path | None = None,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        # Its unix sockets allow 107 letters.
        self.state = Path(tempfile.gettempdir()) / f"burstd-openstack-{secrets.token_hex(4)}"
        self._own = lab is None
        # Not in the state, which the keeper removes: the guard reads there which network to remove.
        self.lab = lab or Lab(Path(f"{self.state}-lab"), LabNetwork(f"o{secrets.token_hex(4)}"))
        self._machines = machines
        self._progress = progress
        self._watchdog: LabWatchdog | None = None
        self._services: Services | None = None

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
        """Starts it; returns when every service is up. Raises LabFailed, SandboxError."""
        made = template.ensure(self._progress)
        if self._own:
            self._watchdog = LabWatchdog(self.lab.state)
            self.lab.up()
        parameters = Parameters(self.state, made.venv)
        self._services = Services(parameters, self.lab.network.enter(), self._machines)
        self.state.mkdir(mode=0o700)
        self._services.open()
        template.copy(made, parameters)
        self.faults()
        with self.reach():
            self._services.start_stores()
            self._services.start_services()
            self._services.wait(lambda: self.services.listens(conf.DATABASE), "the database answers")
            template.settle_in(self._services, self.state)
            self._services.wait_ready()
        return self

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        with ExitStack() as last:
            if self._watchdog is not None:
                last.callback(self._watchdog.end)
                self._watchdog = None
            last.callback(shutil.rmtree, self.state, ignore_errors=True)
            if self._own:
                last.callback(self.lab.down)
            if self._services is not None:
                last.callback(self._services.close)
                self._services = None

    @property
    def services(self) -> Services:
        """Its processes."""
        assert self._services is not None, "the control plane is not up"
        return self._services

    @contextmanager
    def reach(self) -> Iterator[None]:
        """This thread, and what it starts meanwhile, reaches the APIs."""
        with on_network(self.lab.network.hub or ""):
            yield

    @property
    def admin_yaml(self) -> Path:
        """A clouds.yaml with the cloud ``admin``, who may do everything."""
        return self.state / "conf" / "clouds.yaml"

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """A connection of who may do everything; this thread reaches the APIs meanwhile."""
        with self.reach(), template.connect(self.admin_yaml, conf.ADMIN) as connection:
            yield connection

    def project(self, name: str, **words: Any) -> Project:
        """A new project, its user, network, security group and key pair; see ``make_project`` for the words."""
        with self.admin() as admin:
            return make_project(admin, self.auth_url, name, **words)

    def quota(self, project: Project, **limits: int) -> None:
        """Sets some: instances, cores, ram (MiB), ports, floating_ips, volumes, gigabytes. -1 is no limit."""
        network = {"ports": "port", "floating_ips": "floatingip"}
        storage = {"volumes", "gigabytes"}
        with self.admin() as admin:
            for name, limit in limits.items():
                if name in network:
                    admin.network.update_quota(project.id, **{network[name]: limit})
                elif name in storage:
                    admin.block_storage.update_quota_set(project.id, **{name: limit})
                else:
                    admin.compute.update_quota_set(project.id, **{name: limit})

    def faults(self, **words: Any) -> None:
        """What goes wrong from now on, and nothing else: the keys are those of drivers/burstd_virt.py."""
        file = self.state / "faults.json"
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps(words), encoding="utf-8")
        unfinished.rename(file)

    @property
    def _processes(self) -> ProcessSupervisor:
        return self.services


def main() -> int:
    """Keeps one up for people."""
    with ControlPlane(progress=print) as cloud:
        project = cloud.project("demo")
        file = cloud.state / "demo.yaml"
        file.write_text(project.clouds_yaml(), encoding="utf-8")
        enter = " ".join(cloud.lab.network.enter())
        print("it is up; as a user of the project demo, for example:")
        print(f"  export OS_CLIENT_CONFIG_FILE={file} OS_CLOUD=burst")
        print(f"  {enter} {cloud.services.program('openstack')} server list\nEnd it with Ctrl-C.", flush=True)
        done = threading.Event()
        for what in (signal.SIGINT, signal.SIGTERM):
            signal.signal(what, lambda *_: done.set())
        done.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
