"""The state that every control plane of the lab starts from: databases with their schemas and what ``seed`` makes.

It takes a minute or two, and is made once, in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openstack.config import OpenStackConfig
from openstack.connection import Connection

from providers.sandbox.boxes.images.rootfs import file_lock
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.machine import default_cache, need_root, need_space, output_of, remove_tree
from providers.sandbox.boxes.network import LabNetwork
from tests.lab.guard import LabWatchdog
from tests.lab.kept import LabFailed
from tests.lab.openstack import conf, seed
from tests.lab.openstack.conf import Parameters
from tests.lab.openstack.services import KEYSTONE, Services
from tests.node.conftest import on_network

_HERE = Path(__file__).parent
_MIB = 1500
_UNUSED_S = 7 * 86400
_PARTS = ("conf.py", "seed.py", "template.py", "drivers/burstd_virt.py", "drivers/burstd_ml2.py")
_ANYWHERE = "/STATE"
"""Stands in the template for the folder that a copy of it is in."""
FOLDERS = ("log", "lock", "rabbit", "nova", "neutron", "cinder", "conf", *conf.COMPUTES)


@dataclass(frozen=True)
class Template:
    """The services' virtual environment and the state."""

    venv: Path
    path: Path


def ensure(progress: Callable[[str], None] = lambda _step: None) -> Template:
    """Installs the services and makes the state, where the cache has none. Two who do wait for each other.

    Raises LabFailed, SandboxError.
    """
    need_root("a control plane")
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    venv = _venv(cache)
    digest = hashlib.sha256(venv.name.encode())
    for part in _PARTS:
        digest.update((_HERE / part).read_bytes())
    path = cache / f"openstack-state-{digest.hexdigest()[:8]}"
    with file_lock(cache / "openstack-state.lock", lambda: progress("waiting for OpenStack's databases")):
        if not path.exists():
            need_space(cache, _MIB)
            progress("making OpenStack's databases (once, a minute or two)")
            unfinished = path.with_suffix(".unfinished")
            remove_tree(unfinished)
            unfinished.mkdir(mode=0o700)
            try:
                _build(Parameters(unfinished, venv))
                unfinished.rename(path)
            finally:
                remove_tree(unfinished)
            _remove_unused(cache)
        os.utime(path)
    return Template(venv, path)


def _remove_unused(cache: Path) -> None:
    """Older states, so that changes of the lab do not fill the cache."""
    for other in cache.glob("openstack-state-*"):
        if time.time() - other.stat().st_mtime > _UNUSED_S:
            remove_tree(other)


def copy(template: Template, parameters: Parameters) -> None:
    """A control plane's own state, with its configuration."""
    state = parameters.state
    done = output_of(["cp", "-a", "--reflink=auto", f"{template.path}/.", str(state)])
    if done.returncode != 0:
        raise LabFailed(f"the state could not be copied: {done.stderr.strip()}")
    configure(parameters)


def configure(parameters: Parameters) -> None:
    """Writes the configuration of all services."""
    for folder in FOLDERS:
        (parameters.state / folder).mkdir(exist_ok=True)
    for name, text in conf.files(parameters).items():
        (parameters.state / "conf" / name).write_text(text, encoding="utf-8")


def settle_in(services: Services, state: Path) -> None:
    """What a copy of the database has to know of the folder that it is in."""
    services.sql(f"update image_locations set value = replace(value, '{_ANYWHERE}', '{state}')", "glance")  # noqa: S608


def connect(clouds: Path, name: str) -> Any:
    """A connection of a cloud of that file, and of nothing that this machine has."""
    return Connection(config=OpenStackConfig(config_files=[str(clouds)], load_envvars=False).get_one(name))


def _venv(cache: Path) -> Path:
    done = subprocess.run([str(_HERE / "setup.sh"), str(cache)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise LabFailed("OpenStack's services could not be installed; why is above")
    return Path(done.stdout.strip())


def _build(parameters: Parameters) -> None:
    state = parameters.state
    with tempfile.TemporaryDirectory(prefix="burstd-openstack-") as folder:
        lab = Lab(Path(folder), LabNetwork(f"t{secrets.token_hex(4)}"))
        with ExitStack() as last:
            last.callback(LabWatchdog(lab.state).end)
            last.callback(lab.down)
            lab.up()
            services = Services(parameters, lab.network.enter())
            last.callback(services.close)
            services.open(keep=True)
            with on_network(lab.network.hub or ""):
                _seed_databases(services, parameters)
    for folder_name in ("log", "lock", "conf", "rabbit"):
        remove_tree(state / folder_name)


def _seed_databases(services: Services, parameters: Parameters) -> None:
    state, conf_file = parameters.state, f"--config-file={parameters.state}/conf"
    for folder in ("mysql", "fernet", "credentials", "images/staging", "images/tasks"):
        (state / folder).mkdir(mode=0o700, parents=True)
    configure(parameters)
    words = ["--no-defaults", f"--datadir={state}/mysql", "--user=root", "--skip-test-db"]
    services.run("install-db", ["mariadb-install-db", *words, "--auth-root-authentication-method=normal"])
    services.start_stores()
    services.wait(lambda: services.listens(conf.DATABASE), "the database answers")
    for schema in conf.SCHEMAS:
        services.sql(f"create database {schema} character set utf8mb3")
    services.sql("create user os@'127.0.0.1' identified by 'os'; grant all on *.* to os@'127.0.0.1'")
    url, ids = f"http://{conf.HOST}:{conf.KEYSTONE}/v3", "--keystone-user root --keystone-group root"
    bootstrap = " ".join(f"--bootstrap-{kind}-url {url}" for kind in ("public", "internal"))
    scripts = {
        "keystone": f"""keystone-manage {conf_file}/keystone.conf db_sync
            keystone-manage {conf_file}/keystone.conf fernet_setup {ids}
            keystone-manage {conf_file}/keystone.conf credential_setup {ids}
            keystone-manage {conf_file}/keystone.conf bootstrap --bootstrap-password {conf.ADMIN} \
              --bootstrap-region-id {conf.REGION} {bootstrap}""",
        "small": f"""placement-manage {conf_file}/placement.conf db sync
            glance-manage {conf_file}/glance-api.conf db_sync
            cinder-manage {conf_file}/cinder.conf db sync""",
        "neutron": f"neutron-db-manage {conf_file}/neutron.conf upgrade heads",
        "nova": f"""nova-manage {conf_file}/nova.conf api_db sync
            nova-manage {conf_file}/nova.conf cell_v2 map_cell0 --database_connection \
              {parameters.database("nova_cell0")}
            nova-manage {conf_file}/nova.conf db sync
            nova-manage {conf_file}/nova.conf cell_v2 create_cell --name cell1""",
    }
    for name, script in scripts.items():
        services.start(f"{name}-schema", ["sh", "-exc", script], lasting=False)
    for name in scripts:
        services.succeed(f"{name}-schema")
    services.start_services([KEYSTONE])
    services.wait(lambda: services.listens(conf.KEYSTONE, conf.HOST), "keystone answers")
    clouds = state / "conf" / "clouds.yaml"
    with connect(clouds, conf.ADMIN) as admin:
        seed.catalogue(admin)
    services.start_services()
    services.wait_ready()
    manage = f"{parameters.venv}/bin/nova-manage"
    services.run("discover", [manage, f"{conf_file}/nova.conf", "cell_v2", "discover_hosts"])
    with connect(clouds, conf.ADMIN) as admin:
        seed.things(admin)
    services.end_services()
    long_ago = "'2020-01-01'"
    services.sql(f"update nova.services set updated_at = {long_ago}, last_seen_up = {long_ago}")  # noqa: S608
    services.sql(f"update cinder.services set updated_at = {long_ago}")  # noqa: S608
    services.sql(f"update glance.image_locations set value = replace(value, '{state}', '{_ANYWHERE}')")  # noqa: S608
    services.signal("SIGTERM", "mariadb")
    services.succeed("mariadb")
    for file in state.glob("my.*"):
        os.unlink(file)  # noqa: PTH108


if __name__ == "__main__":
    ensure(lambda step: print(f"burstd: {step}", flush=True))
