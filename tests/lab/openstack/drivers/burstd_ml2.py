"""Neutron's mechanism driver of the lab: every port is bound at once, for there is no agent that could say it is."""

# mypy: disable-error-code="import-not-found, misc, no-any-unimported"
from __future__ import annotations

from typing import Any

from neutron.db.models import port_forwarding  # noqa: F401  # else the first list of ports fails for want of it
from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api
from sqlalchemy import orm


class AtOnce(api.MechanismDriver):
    """Ports are ACTIVE when they have a host."""

    def initialize(self) -> None:
        """Completes the models while there is one thread only."""
        orm.configure_mappers()

    def bind_port(self, context: Any) -> None:
        """Binds to the first segment."""
        for segment in context.segments_to_bind[:1]:
            context.set_binding(
                segment[api.ID],
                portbindings.VIF_TYPE_OVS,
                {portbindings.CAP_PORT_FILTER: True},
                status=constants.PORT_STATUS_ACTIVE,
            )
