"""Nova's driver of the lab: nova's own fake one, with GPUs, faults, and machines behind its servers.

``BURSTD_FAULTS`` names a JSON file, read at each start and end of a server:

    spawn_delay, destroy_delay      seconds
    spawn_fail, destroy_fail        a regular expression on the server's name; a build that fails so is given up
    spawn_reschedule                as spawn_fail, but nova tries the next host

``BURSTD_MACHINES`` names a unix socket. Each spawn, destroy and console is one connection there with one line of JSON
and one line in answer, an object with ``error`` or with ``ok`` (and ``text``, the console's):

    {"do": "spawn", "uuid", "address", "floating", "gpus", "drive"}
    {"do": "destroy", "uuid"}
    {"do": "console", "uuid"}

``floating`` are the floating IPs of ``address``; ``drive`` is the config drive that nova makes for the server: its
files of the newest version, by path, in base64. Without a socket nothing boots.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-unimported"
# ruff: noqa: ARG002
from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from nova import exception
from nova.api.metadata.base import InstanceMetadata
from nova.virt import fake

GPU = ("10de", "2330")
FPGA = ("10ee", "5000")
"""PCI vendor and product, as the aliases in nova.conf have them."""
GPUS = 8
FPGAS = 2
VGPUS = 16
_SPEAK_S = 120.0
_CONSOLE = "Debian GNU/Linux 12 {name} ttyS0\n\n{name} login: "


def _faults() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(os.environ["BURSTD_FAULTS"]).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _hit(faults: dict[str, Any], fault: str, name: str) -> bool:
    return bool(faults.get(fault)) and re.match(faults[fault], name) is not None


def _drive(instance: Any, injected_files: Any, network_info: Any) -> dict[str, str]:
    """As nova's own drivers have it written to a disk."""
    made = InstanceMetadata(instance, content=injected_files, network_info=network_info)
    wanted = ("openstack/latest/", "openstack/content/")
    files = {path: data for path, data in made.metadata_for_config_drive() if path.startswith(wanted)}
    return {path: base64.b64encode(data).decode() for path, data in files.items()}


def _machines() -> str:
    return os.environ.get("BURSTD_MACHINES", "")


def _ask(**words: Any) -> dict[str, Any] | None:
    """What is behind our servers answers; None when nothing is. Raises NovaException."""
    place = _machines()
    if not place:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(_SPEAK_S)
            there.connect(place)
            there.sendall(json.dumps(words).encode() + b"\n")
            with there.makefile("r", encoding="utf-8") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
    except (OSError, ValueError) as error:
        raise exception.NovaException(f"the lab's machines did not answer: {error!r}") from error
    if "error" in answer:
        raise exception.NovaException(answer["error"])
    return answer


class LabDriver(fake.FakeDriverWithoutFakeNodes):
    """One host with GPUs on two NUMA nodes, FPGAs and slices of GPUs."""

    vcpus = 1000
    memory_mb = 800_000

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        """Adds the PCI devices."""
        found: dict[str, Any] = super().get_available_resource(nodename)
        devices = [(0x10 + i, GPU, i * 2 // GPUS) for i in range(GPUS)] + [(0x60 + i, FPGA, 0) for i in range(FPGAS)]
        found["pci_passthrough_devices"] = json.dumps(
            [
                {
                    "address": f"0000:{bus:02x}:00.0",
                    "vendor_id": vendor,
                    "product_id": product,
                    "status": "available",
                    "dev_type": "type-PCI",
                    "parent_addr": None,
                    "numa_node": node,
                    "label": f"label_{vendor}_{product}",
                }
                for bus, (vendor, product), node in devices
            ]
        )
        return found

    def update_provider_tree(self, tree: Any, nodename: str, allocations: Any = None) -> None:
        """Adds what placement counts."""
        super().update_provider_tree(tree, nodename, allocations)
        inventory = dict(tree.data(nodename).inventory)
        for resource, total in (("VGPU", VGPUS), ("CUSTOM_FPGA", FPGAS)):
            counted = {"total": total, "min_unit": 1, "max_unit": total, "step_size": 1}
            inventory[resource] = {**counted, "allocation_ratio": 1.0, "reserved": 0}
        tree.update_inventory(nodename, inventory)

    def spawn(
        self, context: Any, instance: Any, image_meta: Any, injected_files: Any, admin_password: Any, allocations: Any,
        network_info: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        """Starts a machine."""
        faults = _faults()
        time.sleep(float(faults.get("spawn_delay", 0)))
        if _hit(faults, "spawn_fail", instance.display_name):
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason="the lab was told to fail")
        if _hit(faults, "spawn_reschedule", instance.display_name):
            raise exception.NovaException("the lab was told to fail on every host")
        super().spawn(
            context,
            instance,
            image_meta,
            injected_files,
            admin_password,
            allocations,
            network_info=network_info,
            **more,
        )
        if _machines():
            self._boot(instance, injected_files, allocations, network_info)

    def _boot(self, instance: Any, injected_files: Any, allocations: Any, network_info: Any) -> None:
        slices = sum(one["resources"].get("VGPU", 0) for one in (allocations or {}).values())
        devices = [d for d in instance.get_pci_devices() if (d.vendor_id, d.product_id) == GPU]
        address = next(ip for vif in network_info for ip in vif.fixed_ips())
        try:
            _ask(
                do="spawn",
                uuid=instance.uuid,
                address=str(address["address"]),
                floating=[str(one["address"]) for one in address["floating_ips"]],
                gpus=len(devices) + slices,
                drive=_drive(instance, injected_files, network_info),
            )
        except exception.NovaException as error:
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=str(error)) from error

    def destroy(self, context: Any, instance: Any, network_info: Any, *words: Any, **more: Any) -> None:
        """Ends the machine."""
        faults = _faults()
        time.sleep(float(faults.get("destroy_delay", 0)))
        if _hit(faults, "destroy_fail", instance.display_name):
            raise exception.InstanceTerminationFailure(reason="the lab was told to fail")
        _ask(do="destroy", uuid=instance.uuid)
        super().destroy(context, instance, network_info, *words, **more)

    def get_console_output(self, context: Any, instance: Any) -> bytes:
        """What the machine has written."""
        answer = _ask(do="console", uuid=instance.uuid)
        text = _CONSOLE.format(name=instance.display_name) if answer is None else str(answer["text"])
        return text.encode()
