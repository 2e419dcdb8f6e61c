"""What Nova's extra specs say of a flavor. The forms are those that Nova 34 took, written down as it gave them back."""

from __future__ import annotations

import pytest

from providers.openstack.catalog.flavors import Flavor, parse_flavor

GPUS = {
    "h100": "h100",
    "a100": "a100",
    "nic": "",
    "FPGA": "",
    "VGPU": "vgpu",
    "CUSTOM_A10": "a10",
    "CUSTOM_GPU": "gold",
}


def named(specs: dict[str, str]) -> Flavor:
    said = {"id": "f1", "name": "some", "vcpus": 8, "ram": 65536, "disk": 40, "OS-FLV-EXT-DATA:ephemeral": 200}
    return parse_flavor(said, specs)


def gres(one: Flavor) -> list[str]:
    return [str(part) for part in one.shape(GPUS, 1.0).gres]


@pytest.mark.parametrize(
    ("specs", "wanted"),
    [
        ({}, []),
        ({"pci_passthrough:alias": "h100:4"}, ["gpu:h100:4"]),
        ({"pci_passthrough:alias": "h100:1, nic:1,h100:1"}, ["gpu:h100:2"]),
        ({"pci_passthrough:alias": "h100:1,a100:2"}, ["gpu:a100:2", "gpu:h100:1"]),
        ({"resources:VGPU": "1"}, ["gpu:vgpu:1"]),
        ({"resources:VGPU": "0"}, []),
        ({"resources:CUSTOM_GPU": "2"}, ["gpu:gold:2"]),
        ({"resources:VGPU": "1", "trait:CUSTOM_A10": "required"}, ["gpu:a10:1"]),
        ({"resources:VGPU": "1", "trait:CUSTOM_A10": "forbidden"}, ["gpu:vgpu:1"]),
        ({"pci_passthrough:alias": "gpu:2", "trait:CUSTOM_A10": "required"}, ["gpu:a10:2"]),
        ({"resources1:VGPU": "1", "trait1:CUSTOM_A10": "required", "resources2:VGPU": "1",
          "trait2:CUSTOM_A10": "required", "group_policy": "none"}, ["gpu:a10:2"]),
        ({"resources1:VGPU": "1", "resources_b-2:VGPU": "1", "trait_b-2:CUSTOM_A10": "required"},
         ["gpu:a10:1", "gpu:vgpu:1"]),
        ({"resources:VGPU": "1", "resources:FPGA": "1", "trait:CUSTOM_A10": "required"}, ["gpu:a10:1"]),
        ({"trait:CUSTOM_A10": "required"}, []),
        ({"accel:device_profile": "h100"}, ["gpu:h100:1"]),
    ],
)  # fmt: skip
def test_gpus(specs: dict[str, str], wanted: list[str]) -> None:
    one = named(specs)
    assert gres(one) == wanted
    assert one.unmapped_devices(GPUS) == ()


@pytest.mark.parametrize(
    ("specs", "wanted"),
    [
        ({"pci_passthrough:alias": "h100:1,mi300:2"}, ("mi300",)),
        ({"resources:PGPU": "1", "resources:CUSTOM_ODD": "1"}, ("CUSTOM_ODD", "PGPU")),
        ({"accel:device_profile": "cards"}, ("cards",)),
        ({"resources:VCPU": "8", "resources:PCPU": "0", "resources:MEM_ENCRYPTION_CONTEXT": "1",
          "resources:CUSTOM_PMEM_NAMESPACE_6GB": "1", "resources:VGPU_DISPLAY_HEAD": "1"}, ()),
        ({"hw:cpu_policy": "dedicated", "quota:vif_inbound_average": "1", ":category": "gpu"}, ()),
    ],
)  # fmt: skip
def test_devices_that_the_settings_do_not_name(specs: dict[str, str], wanted: tuple[str, ...]) -> None:
    assert named(specs).unmapped_devices(GPUS) == wanted


def test_size() -> None:
    one = named({})
    shape = one.shape({}, 0.9)
    assert (shape.cpus, shape.memory_mib, one.disk_gib, one.ephemeral_gib) == (8, 58982, 40, 200)


@pytest.mark.parametrize(
    ("trait", "wanted"), [("HW_ARCH_AARCH64", "aarch64"), ("COMPUTE_ARCH_X86_64", "x86_64"), ("HW_CPU_X86_AVX2", "")]
)
def test_architecture(trait: str, wanted: str) -> None:
    assert named({f"trait:{trait}": "required"}).architecture == wanted
    assert named({f"trait:{trait}": "forbidden"}).architecture == ""
