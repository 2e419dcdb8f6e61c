"""The processes of one control plane: which there are, and how they are started, frozen and ended."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.kept import LabFailed, ProcessSupervisor
from tests.lab.openstack import conf
from tests.lab.openstack.conf import Parameters

_HERE = Path(__file__).parent
_RUN = _HERE / "drivers" / "run.py"
_PATIENCE_S = 240.0
_THREADS = 12
KEYSTONE = "keystone"
APIS: dict[str, tuple[str, int]] = {
    KEYSTONE: ("keystone.wsgi.api", conf.KEYSTONE),
    "placement": ("placement.wsgi.api", conf.PLACEMENT),
    "glance": ("glance.wsgi.api", conf.GLANCE),
    "neutron": ("neutron.wsgi.api", conf.NEUTRON),
    "nova-api": ("nova.wsgi.osapi_compute", conf.NOVA),
    "cinder-api": ("cinder.wsgi.api", conf.CINDER),
}
"""Their WSGI modules and ports."""
_REPORTING = {
    "nova-conductor@control",
    "nova-scheduler@control",
    *(f"nova-compute@{host}" for host in conf.COMPUTES),
    "cinder-scheduler",
    "cinder-volume",
}


@dataclass(frozen=True)
class _Service:
    name: str
    words: list[str]


class Services(ProcessSupervisor):
    """The processes in ``parameters.state``, which is removed with them.

    ``prefix`` goes before the command line (``nsenter --net=...``); ``machines`` is the socket that
    drivers/burstd_virt.py speaks to.
    """

    poll_s = 0.05

    def __init__(self, parameters: Parameters, prefix: Sequence[str] = (), machines: Path | None = None) -> None:
        self._parameters = parameters
        self._started: list[str] = []
        environment = {
            **conf.environment(parameters),
            "PYTHONPATH": str(_RUN.parent),
            "PYTHONWARNINGS": "ignore",
            **({"BURSTD_MACHINES": str(machines)} if machines else {}),
            "PATH": f"{parameters.venv}/bin:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        }
        super().__init__(parameters.state, prefix, environment, _PATIENCE_S)

    def program(self, name: str) -> str:
        """One of the services' virtual environment: ``openstack``, ``nova-manage``."""
        return f"{self._parameters.venv}/bin/{name}"

    def start_stores(self) -> None:
        """The database and the message broker."""
        state = self._parameters.state
        self.start("mariadb", conf.database_words(state))
        broker = conf.broker_environment(state)
        # Else the broker starts one that it leaves behind.
        self.start("epmd", ["epmd", "-port", str(conf.EPMD), "-address", "127.0.0.1"], broker)
        self.start("rabbitmq", [*_broker_program()], broker)

    def start_services(self, names: Sequence[str] = ()) -> None:
        """Those, or all but what runs already; they wait for each other by themselves."""
        for service in self._services():
            if service.name in names or (not names and service.name not in self._started):
                self._started.append(service.name)
                # A start of Nova fails now and then: its threads read options while others are registered.
                self.start(service.name, service.words, again=service.name.startswith("nova-"))

    def end_services(self) -> None:
        """Those, and not the database and the broker."""
        for name in self._started:
            self.end(name)

    def wait_ready(self) -> None:
        """Returns when all APIs answer, and every other service has said so lately."""
        for name, (_, port) in APIS.items():
            self.wait(lambda port=port: self.listens(port, conf.HOST), f"{name} answers")  # type: ignore[misc]
        self.wait(self._reported, "every service of nova and cinder is up")

    def _reported(self) -> bool:
        """What these services do of themselves every few seconds, in the database."""
        lately = "updated_at > utc_timestamp() - interval 12 second"
        found = self.sql(
            f"select concat(`binary`, '@', host) from nova.services where {lately} union all "  # noqa: S608
            f"select `binary` from cinder.services where {lately}"
        )
        return set(found.split()) >= _REPORTING

    def sql(self, text: str, schema: str = "") -> str:
        """What the database's administrator gets for it. Raises LabFailed."""
        words = ["mariadb", "--no-defaults", f"--socket={self._parameters.state}/my.sock", "-uroot", "-N", schema]
        done = subprocess.run([w for w in words if w], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabFailed(f"the database refused: {done.stderr.strip()}")
        return done.stdout

    def listens(self, port: int, address: str = "127.0.0.1") -> bool:
        """Whether something in this network namespace does; the calling thread must be in it."""
        with socket.socket() as probe:
            return probe.connect_ex((address, port)) == 0

    def _services(self) -> list[_Service]:
        state, venv = self._parameters.state, self._parameters.venv
        python, file = f"{venv}/bin/python", f"--config-file={state}/conf"
        database, broker = str(conf.DATABASE), str(conf.BROKER)
        keystone, placement = f"{conf.HOST}:{conf.KEYSTONE}", f"{conf.HOST}:{conf.PLACEMENT}"
        cinder = [f"{file}/cinder.conf"]
        found = []
        for name, (module, port) in APIS.items():
            words = [python, str(_RUN), "wsgi", module, database, conf.HOST, str(port), str(_THREADS)]
            found.append(_Service(name, [*words, *(cinder if name == "cinder-api" else [])]))
        both = f"{database},{broker}"
        mains = [
            ("nova-conductor", "nova.cmd.conductor", both, [f"{file}/nova.conf"]),
            ("nova-scheduler", "nova.cmd.scheduler", f"{both},{keystone},{placement}", [f"{file}/nova.conf"]),
            *(
                (
                    f"nova-compute{number}",
                    "nova.cmd.compute",
                    # A call that the conductor does not take yet is lost, and repeated after ten seconds.
                    f"{both},{keystone},{placement},conductor@{broker}",
                    [f"{file}/nova.conf", f"{file}/{host}.conf"],
                )
                for number, host in enumerate(conf.COMPUTES, 1)
            ),
            ("cinder-scheduler", "cinder.cmd.scheduler", both, cinder),
            # What it says of its capacity is lost where the scheduler does not read yet, and repeated after minutes.
            ("cinder-volume", "cinder.cmd.volume", f"{both},cinder-scheduler@{broker}", cinder),
        ]
        found += [_Service(name, [python, str(_RUN), "main", module, after, *w]) for name, module, after, w in mains]
        return found


def _broker_program() -> list[str]:
    """Not Debian's, which changes the user."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not found:
        raise LabFailed("RabbitMQ is not installed: apt-get install rabbitmq-server")
    return [str(found[-1])]
