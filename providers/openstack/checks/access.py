"""Who burstd is to this cloud, how long, with which role, and which services the cloud has for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from burstd.domain.errors import CloudUnavailable, ProviderError
from providers.checks import Verdict, bad, good, unclear
from providers.openstack.checks.project import DOC, MEMBER, CheckedProject, error_verdict

_NEW = f"make a new one: openstack application credential create NAME --role member ({DOC}, Another credential)"
_AS_MEMBER = f"make an application credential with --role member, as a user who has that role ({DOC}, Credential)"
_SOON = timedelta(days=14)
_MEMBERS = ("member", "_member_", "manager")
"""What clouds call the role that may make servers; newer ones have the manager above it."""
_TAGS = (2, 52)
"""The microversion that takes tags with a new server: since Nova 16, of 2017."""


def judge_credentials(at: CheckedProject) -> Iterator[Verdict]:
    """Gets a token for a project."""
    try:
        connection = at.calls.connection
        with at.calls.translate_errors(changes=False, what="get a token"):
            at.token = token = connection.session.auth.get_access(connection.session)
    except CloudUnavailable as error:
        yield bad(
            str(error), "let burstd's user reach the auth_url of clouds.yaml (https_proxy in the unit where there is a "
            "proxy; cacert in clouds.yaml where the certificate is the site's own)", fatal=True,
        )  # fmt: skip
    except ProviderError as error:
        remedy = f"set cloud and clouds_yaml so that 'openstack token issue' works as burstd's user ({DOC}, Credential)"
        yield bad(str(error), remedy, fatal=True)
    else:
        if token.project_id:
            yield good(f"user {token.username} in project {token.project_name} ({token.project_id})")
        else:
            remedy = "set project_name and project_domain_name in clouds.yaml, or use an application credential"
            yield bad(f"user {token.username} has a token for no project", remedy, fatal=True)


def judge_application_credential(at: CheckedProject) -> Verdict | None:
    """How long it holds, and whether others can be made with it."""
    if not at.token.application_credential_id:
        return None
    path = f"/users/{at.token.user_id}/application_credentials/{at.token.application_credential_id}"
    try:
        said = at.calls.query("identity", path, "read burstd's application credential")["application_credential"]
    except ProviderError as error:
        return unclear(f"when it expires cannot be told: {error}", "openstack application credential list")
    summary = f"{said['name']} never expires"
    if said.get("expires_at"):
        until = datetime.fromisoformat(said["expires_at"].rstrip("Z")).replace(tzinfo=UTC)
        summary = f"{said['name']} expires {until:%Y-%m-%d %H:%M} UTC"
        if until - datetime.now(UTC) < _SOON:
            return bad(summary, _NEW)
    if said.get("unrestricted"):
        return bad(f"{summary}; it is unrestricted, so who finds it can make others", f"{_NEW}, without --unrestricted")
    return good(summary)


def judge_role(at: CheckedProject) -> Verdict:
    """Neither less nor more than a member's."""
    roles = sorted(at.token.role_names)
    summary, known = ", ".join(roles), {role.lower() for role in roles}
    remedy = _AS_MEMBER if at.token.application_credential_id else MEMBER
    if "admin" in known:
        return bad(f"{summary}: it may do everything in the whole cloud, and sees what every project has", _AS_MEMBER)
    if known & set(_MEMBERS):
        return good(summary)
    if known <= {"reader", "load-balancer_observer"}:
        return bad(f"{summary}: it may look, and make nothing", remedy)
    return unclear(
        f"{summary}: whether it may make servers and ports shows at the first launch",
        f"{remedy}, or ask the cloud's operator which role may make servers, ports and volumes",
    )


def judge_services(at: CheckedProject) -> Verdict:
    """Whether the catalogue has what burstd needs; without volumes the rest of the check can be asked all the same."""
    wanted = ["compute", "network", "image", *(["block-storage"] if at.settings.root is not None else [])]
    at.calls.region()
    lacking = [service for service in wanted if not at.calls.has_service(service)]
    summary = f"the service catalogue has no {', '.join(lacking)} in this region"
    if lacking == ["block-storage"]:
        return bad(summary, "take root out of the settings: this cloud has no volumes to boot from")
    if lacking == wanted:
        remedy = "set region, or region_name and interface in clouds.yaml, to what 'openstack catalog list' has"
        return bad(summary, remedy, fatal=True)
    if lacking:
        return bad(summary, "ask the cloud's operator; burstd needs Nova, Neutron and Glance", fatal=True)
    try:
        return _nova_version(at, wanted)
    except ProviderError as error:
        return error_verdict(error, "look at 'openstack catalog list'")


def _nova_version(at: CheckedProject, wanted: list[str]) -> Verdict:
    with at.calls.translate_errors(changes=False, what="read Nova's versions"):
        data = at.calls.connection.compute.get_endpoint_data()
    newest = None if data is None else data.max_microversion
    if newest is None:
        return unclear(
            "Nova does not say which versions of its interface it has",
            "see whether the compute service of 'openstack catalog list' answers where burstd runs",
        )
    if newest < _TAGS:
        return bad(
            f"Nova's API ends with {newest[0]}.{newest[1]}",
            "burstd needs 2.52 at least (OpenStack Pike): ask the cloud's operator for a newer Nova",
        )
    return good(f"{', '.join(wanted)}; Nova's API up to {newest[0]}.{newest[1]}")
