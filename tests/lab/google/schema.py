"""Google's own description of its interfaces: which requests there are, and what requests and answers hold.

It comes with google-api-python-client (Discovery documents). What is not in it does not pass: no unknown field, no
unknown parameter, no output in a request.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from googleapiclient.discovery_cache import get_static_doc
from jsonschema import Draft202012Validator

_SERVICES = (("compute", "v1"), ("cloudbilling", "v1"), ("cloudresourcemanager", "v1"))
_OUTPUT = re.compile(r"^(Output only\. )?\[Output Only\]|^Output only", re.IGNORECASE)
_NUMBERS = {"int64": r"^-?\d+$", "uint64": r"^\d+$"}


class SchemaViolation(Exception):
    """A request or an answer that Google's schema does not have."""


@dataclass(frozen=True, slots=True)
class Method:
    """One of Google's methods."""

    id: str
    verb: str
    path: re.Pattern[str]
    parameters: dict[str, dict[str, Any]]
    request: str
    response: str
    service: str

    def check_query(self, query: dict[str, str]) -> None:
        """Raises SchemaViolation."""
        for name, value in query.items():
            known = self.parameters.get(name)
            if known is None or known.get("location") != "query":
                raise SchemaViolation(f"{self.id} has no parameter {name}")
            if known["type"] == "integer":
                number = int(value)
                if number < int(known.get("minimum", number)) or number > int(known.get("maximum", number)):
                    raise SchemaViolation(f"{self.id}: {name}={value}")
            if known["type"] == "boolean" and value not in ("true", "false"):
                raise SchemaViolation(f"{self.id}: {name}={value}")
            if "pattern" in known and not re.fullmatch(known["pattern"], value):
                raise SchemaViolation(f"{self.id}: {name}={value}")

    def check_request(self, body: Any) -> None:
        """Raises SchemaViolation, also where a client says what only Google may."""
        _check(self.service, self.request, body, writes=True)

    def check_answer(self, body: Any) -> None:
        """Raises SchemaViolation."""
        _check(self.service, self.response, body, writes=False)


@cache
def methods() -> tuple[Method, ...]:
    """Those of all services."""
    found = []
    for service, version in _SERVICES:
        doc = _document(service, version)
        for one in _walk(doc["resources"]):
            path = "/" + doc["servicePath"] + one.get("flatPath", one["path"])
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path).replace(r"\+", ""))
            found.append(
                Method(
                    one["id"], one["httpMethod"], re.compile(pattern), {**doc["parameters"], **one["parameters"]},
                    one.get("request", {}).get("$ref", ""), one.get("response", {}).get("$ref", ""), service,
                )
            )  # fmt: skip
    return tuple(found)


def _walk(resources: dict[str, Any]) -> Any:
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _walk(resource.get("resources", {}))


@cache
def _document(service: str, version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get_static_doc(service, version))
    return found


@cache
def _definitions(service: str, *, writes: bool) -> dict[str, Any]:
    version = dict(_SERVICES)[service]
    schemas = _document(service, version)["schemas"]
    return {name: _converted(one, writes=writes) for name, one in schemas.items()}


@cache
def _validator(service: str, name: str, *, writes: bool) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _definitions(service, writes=writes)})


def _check(service: str, name: str, body: Any, *, writes: bool) -> None:
    if not name:
        if body is not None:
            raise SchemaViolation("a body where there is none")
        return
    for error in _validator(service, name, writes=writes).iter_errors(body):
        raise SchemaViolation(f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}")


def _converted(said: dict[str, Any], *, writes: bool) -> dict[str, Any]:
    """A schema of a Discovery document as JSON Schema."""
    if "$ref" in said:
        return {"$ref": f"#/$defs/{said['$ref']}"}
    found: dict[str, Any] = {} if said["type"] == "any" else {"type": said["type"]}
    if "enum" in said:
        found["enum"] = said["enum"]
    if "pattern" in said:
        found["pattern"] = f"^(?:{said['pattern']})$"
    if said.get("format") in _NUMBERS and said["type"] == "string":
        found["pattern"] = _NUMBERS[said["format"]]
    if said["type"] == "array":
        found["items"] = _converted(said["items"], writes=writes)
    if said["type"] == "object":
        more = said.get("additionalProperties")
        found["properties"] = {
            name: _converted(one, writes=writes)
            for name, one in said.get("properties", {}).items()
            if not (writes and (one.get("readOnly") or _OUTPUT.match(one.get("description", ""))))
        }
        found["additionalProperties"] = False if more is None else _converted(more, writes=writes)
    return found


def masked(body: Any, fields: str) -> Any:
    """What partial responses leave of an answer. https://cloud.google.com/compute/docs/api/how-tos/performance"""
    return _kept(body, _tree(fields)) if fields and fields != "*" else body


Tree = dict[str, "Tree"]


def _tree(fields: str) -> Tree:
    tokens = re.findall(r"[^,()/\s]+|[,()/]", fields)
    tree, place = _several(tokens, 0)
    if place != len(tokens):
        raise SchemaViolation(f"fields={fields}")
    return tree


def _several(tokens: list[str], place: int) -> tuple[Tree, int]:
    found: Tree = {}
    while True:
        name, place = tokens[place], place + 1
        at = found.setdefault(name, {})
        while tokens[place : place + 1] == ["/"]:
            at, place = at.setdefault(tokens[place + 1], {}), place + 2
        if tokens[place : place + 1] == ["("]:
            inner, place = _several(tokens, place + 1)
            at.update(inner)
            if tokens[place : place + 1] != [")"]:
                raise SchemaViolation("fields: no closing bracket")
            place += 1
        if tokens[place : place + 1] != [","]:
            return found, place
        place += 1


def _kept(body: Any, tree: Tree) -> Any:
    if not tree:
        return body
    if isinstance(body, list):
        return [_kept(one, tree) for one in body]
    if not isinstance(body, dict):
        return body
    return {
        key: _kept(value, tree.get(key) or tree.get("*", {}))
        for key, value in body.items()
        if key in tree or "*" in tree
    }
