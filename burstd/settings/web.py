"""``[web]``: the page behind a reverse proxy that knows its users."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from burstd.settings.fields import AbsolutePath, Section, matching


class WebSettings(Section):
    """A second socket, for one account: there a header of each request names the user. ``socket`` None: none."""

    socket: AbsolutePath | None = None
    proxy_user: str = ""
    header: Annotated[str, matching(r"[A-Za-z][A-Za-z0-9-]{0,63}", "must be the name of a header of HTTP")] = (
        "X-Remote-User"
    )
    admins: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    @model_validator(mode="after")
    def _names_the_proxy(self) -> Self:
        if self.socket is not None and not self.proxy_user:
            raise ValueError("socket needs proxy_user, the account that the reverse proxy runs as, such as 'www-data'")
        return self
