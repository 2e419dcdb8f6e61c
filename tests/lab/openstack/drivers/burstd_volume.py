"""Cinder's driver of the lab: volumes that hold nothing, and are there at once, also from an image."""

# mypy: disable-error-code="import-not-found, misc, no-any-unimported"
# ruff: noqa: ARG002
from __future__ import annotations

from typing import Any

from cinder import interface
from cinder.volume import driver


@interface.volumedriver
class NoDisks(driver.VolumeDriver):
    """A backend of 10 TB."""

    VERSION = "1"

    def check_for_setup_error(self) -> None:
        """There is nothing that could be wrong."""

    def get_volume_stats(self, refresh: bool = False) -> dict[str, Any]:
        """For the scheduler."""
        return {
            "volume_backend_name": "lab",
            "vendor_name": "burstd",
            "driver_version": self.VERSION,
            "storage_protocol": "fake",
            "total_capacity_gb": 10_000,
            "free_capacity_gb": 10_000,
            "reserved_percentage": 0,
            "multiattach": False,
        }

    def create_volume(self, volume: Any) -> None:
        """It is there."""

    def clone_image(self, context: Any, volume: Any, location: Any, meta: Any, service: Any) -> tuple[None, bool]:
        """The image is on it; cinder need not fetch it."""
        return None, True

    def delete_volume(self, volume: Any) -> None:
        """It is gone."""

    def ensure_export(self, context: Any, volume: Any) -> None:
        """Nothing is exported."""

    def create_export(self, context: Any, volume: Any, connector: Any) -> None:
        """Nothing is exported."""

    def remove_export(self, context: Any, volume: Any) -> None:
        """Nothing is exported."""

    def initialize_connection(self, volume: Any, connector: Any) -> dict[str, Any]:
        """Nova's fake driver attaches whatever it is told."""
        return {"driver_volume_type": "fake", "data": {}}

    def terminate_connection(self, volume: Any, connector: Any, **more: Any) -> None:
        """Nothing was connected."""
