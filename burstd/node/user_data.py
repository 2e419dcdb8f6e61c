"""Renders what cloud-init is told at a machine's first boot. Every user of a cloud project can read it: no secrets."""

from __future__ import annotations

import base64
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burstd.domain.errors import BurstdError
from burstd.share import share_path

MAX_USER_DATA_BYTES = 16384
"""Bytes that EC2 takes; others take more."""
_SECRETS = (
    re.compile(r"BEGIN [A-Z0-9 ]*PRIVATE KEY"),
    re.compile(r"munge\.key|mungekey|slurm\.key|jwt_hs256\.key"),
    re.compile(r"aws_secret_access_key|azure_client_secret|os_password|application_credential_secret", re.IGNORECASE),
    re.compile(r"\b(?:plain_text_passwd|hashed_passwd|passwd|password)[\"']?\s*:\s*[\"']?[^\s\"']"),
)


_ONCE = ("cloud-init-per", "instance", "burstd-unattended")


class TemplateUnusable(BurstdError):
    """The template cannot be read, or what comes of it must not be sent."""


@dataclass(frozen=True, slots=True)
class UserDataValues:
    """What goes into the template; all of it may be known to anyone.

    ``packages``, ``mounts`` and ``commands`` are cloud-init's ``packages``, ``mounts`` and ``runcmd``.
    """

    cluster: str
    pool: str
    provider: str
    ssh_public_key: str
    timezone: str = ""
    """``Europe/Berlin``; the image must know it. Empty: the image's own."""
    packages: Sequence[str] = ()
    mounts: Sequence[Sequence[str]] = ()
    commands: Sequence[Sequence[str] | str] = ()
    power_off_after_s: int = 0
    """A machine that has not become a node by then powers itself off; 0: never."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """More keys of cloud-config."""


def default_template() -> Path:
    """The template that comes with burstd."""
    return share_path("config", "cloud-init", "node.yaml.in")


def render_user_data(values: UserDataValues, template: Path | None = None, secrets: Sequence[bytes] = ()) -> str:
    """The user data: the same text for the same values.

    ``secrets`` are looked for in what comes of it, raw, in hex and in base64. Raises TemplateUnusable.
    """
    file = template or default_template()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateUnusable(f"the cloud-init template {file} cannot be read: {error}") from None
    try:
        # JSON is YAML: no value can break out of its place.
        early = "${power_off}" in text
        rendered = string.Template(text).substitute(_placeholder_values(values, early=early))
    except KeyError as error:
        raise TemplateUnusable(f"{file} has a placeholder ${{{error.args[0]}}} that burstd does not know") from None
    except ValueError as error:
        raise TemplateUnusable(
            f"{file} has a $ that begins no placeholder ({error}): write $$ for a plain one"
        ) from None
    _check_rendered(rendered, file, secrets)
    return rendered


def node_json(cluster: str, pool: str, provider: str) -> str:
    """The content of /etc/burstd/node.json on a machine."""
    return json.dumps({"cluster": cluster, "pool": pool, "provider": provider}, sort_keys=True) + "\n"


def _placeholder_values(values: UserDataValues, *, early: bool) -> dict[str, str]:
    """``early``: the template has a place for what powers the machine off; else that is the first of ``runcmd``."""
    power_off = _power_off(values.power_off_after_s)
    commands = values.commands if early or not power_off else (power_off, *values.commands)
    sections: dict[str, object] = {
        "timezone": values.timezone,
        "packages": list(values.packages),
        "mounts": [list(m) for m in values.mounts],
        "runcmd": [c if isinstance(c, str) else list(c) for c in commands],
        **values.extra,
    }
    return {
        "cluster": json.dumps(values.cluster),
        "pool": json.dumps(values.pool),
        "provider": json.dumps(values.provider),
        "ssh_public_key": json.dumps(values.ssh_public_key),
        "power_off": f"- {json.dumps([*_ONCE, *power_off])}" if power_off else "",
        "node_json": json.dumps(node_json(values.cluster, values.pool, values.provider)),
        # cloud-init complains about sections that are there and empty.
        "extra": "\n".join(f"{key}: {json.dumps(value)}" for key, value in sections.items() if value),
    }


def _power_off(after_s: int) -> list[str]:
    """A command of cloud-init: watching.sh makes the file. No timer of systemd's, whose bus is not there so early."""
    if not after_s:
        return []
    is_node = "[ -e /run/burstd/node ] || grep -qsx slurmd /proc/[0-9]*/comm"
    wait = f"sleep {after_s}; {is_node} || systemctl poweroff || poweroff"
    return ["sh", "-c", f"setsid sh -c '{wait}' </dev/null >/dev/null 2>&1 &"]


def _check_rendered(rendered: str, file: Path, secrets: Sequence[bytes]) -> None:
    if not rendered.startswith("#cloud-config\n"):
        raise TemplateUnusable(
            f"{file} does not begin with the line #cloud-config: cloud-init would not read it as such"
        )
    size = len(rendered.encode())
    if size > MAX_USER_DATA_BYTES:
        raise TemplateUnusable(
            f"{file} comes to {size} bytes and clouds take {MAX_USER_DATA_BYTES}: move parts of it into the image"
        )
    for pattern in _SECRETS:
        found = pattern.search(rendered)
        if found:
            line = rendered.count("\n", 0, found.start()) + 1
            raise TemplateUnusable(
                f"what {file} comes to has something like a secret in line {line}: user data is no place for it, "
                "burstd hands secrets over by ssh"
            )
    for secret in secrets:
        if any(form in rendered for form in _secret_encodings(secret)):
            raise TemplateUnusable(f"what {file} comes to holds a secret of the cluster: take it out")


def _secret_encodings(secret: bytes) -> list[str]:
    forms = [secret.hex(), secret.hex().upper()]
    # Base64 of a text that holds the secret anywhere: what surrounds it shifts the digits by one of three offsets.
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret).decode()
        forms.append(encoded[4 * (shift > 0) : -4])
    try:
        forms.append(secret.decode("utf-8").strip())
    except UnicodeDecodeError:
        return [form for form in forms if len(form) >= 8]
    return [form for form in forms if len(form) >= 8]
