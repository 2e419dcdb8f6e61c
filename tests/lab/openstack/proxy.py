"""What is OpenStack's of the proxy before its APIs: how they name their requests, and what they say of errors."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from tests.lab import proxy
from tests.lab.openstack import conf
from tests.lab.proxy import Act, Api, Asked

APIS = {
    "keystone": conf.KEYSTONE,
    "glance": conf.GLANCE,
    "nova": conf.NOVA,
    "neutron": conf.NEUTRON,
    "cinder": conf.CINDER,
}
_VERSION = re.compile(r"v\d+(\.\d+)?")
_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


def kind(asked: Asked) -> str:
    """API, method and path without version and project, ``ID`` for ids: ``nova POST /servers``."""
    words = [word for word in urlsplit(asked.target).path.split("/") if word]
    if words and _VERSION.fullmatch(words[0]):
        words = words[1:]
    if asked.api == "cinder" and words and _ID.fullmatch(words[0]):
        words = words[1:]
    return f"{asked.api} {asked.method} /" + "/".join("ID" if _ID.fullmatch(word) else word for word in words)


def says(status: int, message: str = "", **headers: str) -> Act:
    """It is not passed on."""
    return proxy.respond({"error": {"message": message, "code": status}} if message else None, status, **headers)


class Proxy(proxy.Proxy):
    """For the APIs in the network of ``namespace``."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace, {name: Api(conf.HOST, port) for name, port in APIS.items()}, kind)
