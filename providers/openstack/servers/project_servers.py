"""The servers of the project, as Nova describes them: all of them, or none.

Asked for with a filter, a limit or a marker, Nova leaves out the servers of a cell that is down, without a word: they
would look gone. Asked for without any, from microversion 2.69 on, it names them, without their details. So the whole
project is listed, the first page without a limit, and a server without details makes it no list at all.

What a list lacks need not be gone all the same. Further pages cannot be had so, nor can any page of a Nova before 2.69;
and a page is cut short where Nova gives a new server to a host while it reads them. ``one`` tells.
https://docs.openstack.org/api-guide/compute/down_cells.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from burstd.domain.errors import CloudUnavailable, NotFound
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

_VERSION = "2.69"
_WHOLE_PAGE = 1000
"""Nova's own limit, unless its operator set another."""
ServerJson = Mapping[str, Any]


class ProjectServers:
    """Of whomever in the project."""

    def __init__(self, settings: OpenStackSettings, calls: OpenStackCalls) -> None:
        self._settings = settings
        self._calls = calls

    def list_servers(self) -> Iterator[ServerJson]:
        """Page by page; one may come twice. Raises CloudUnavailable where Nova knows some by id only."""
        page = self._settings.page
        query = {} if page >= _WHOLE_PAGE else {"limit": page}
        listed = self._calls.pages("compute", "/servers/detail", "servers", "list servers", version=_VERSION, **query)
        return map(_with_details, listed)

    def find_server(self, server_id: str) -> ServerJson | None:
        """None: it is gone. One that waits for its end in a cloud that keeps servers for a while shows here only."""
        try:
            answer = self._calls.query("compute", f"/servers/{server_id}", "look at a server", version=_VERSION)
        except NotFound:
            return None
        return _with_details(answer["server"])


def _with_details(said: ServerJson) -> ServerJson:
    if "metadata" not in said:
        raise CloudUnavailable(
            f"the list of servers is not whole: Nova does not reach the cell that server {said.get('id')} is in"
        )
    return said
