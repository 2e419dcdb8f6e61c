"""``[metrics]``: what Prometheus gets of burstd."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from burstd.settings.fields import RESTART, AbsolutePath, Section, matching

_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ADDRESS = rf"(|([A-Za-z0-9.-]{{1,253}}|\[[0-9A-Fa-f:.]{{2,45}}\]):{_PORT})"
_ADDRESS_FAULT = "must be 'HOST:PORT', such as '127.0.0.1:9797' or '[::1]:9797'; left out: burstd listens nowhere"


class MetricsSettings(Section):
    """``[metrics]``. ``exporter_ports``: of the exporters on burst nodes, for ``file_sd``."""

    listen: Annotated[str, matching(_ADDRESS, _ADDRESS_FAULT)] = Field(default="", json_schema_extra=RESTART)
    file_sd: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    exporter_ports: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1, le=65535)], ...], Field(min_length=1, max_length=16)
    ] = (9100,)
