"""How the ssh program is called: with one key, one file of host keys, and nothing of the caller's own settings."""

from __future__ import annotations

from collections.abc import Sequence

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes128-ctr")
"""The quickest first, where the processor has AES."""


def ssh_argv(
    host: str,
    command: str,
    *,
    user: str,
    key_file: str,
    known_hosts_file: str,
    port: int = 22,
    ciphers: Sequence[str] = CIPHERS,
    timeout_s: float = 30.0,
    connect_timeout_s: float | None = None,
    alias: str = "",
) -> list[str]:
    """The argument list that runs ``command`` on ``host``. It asks nothing, forwards nothing, trusts known hosts only.

    ``alias``: the name under which ``known_hosts_file`` has the host's keys, where it is another. The connection is
    given up where ``host`` is silent for about ``timeout_s``, or does not answer within ``connect_timeout_s``.
    """
    alive = max(1, round(timeout_s / 3))
    options = [
        "BatchMode=yes",
        "PreferredAuthentications=publickey",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        f"UserKnownHostsFile={_quoted(known_hosts_file)}",
        "GlobalKnownHostsFile=/dev/null",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",
        "ForwardX11=no",
        "ControlMaster=no",
        "ControlPath=none",
        "Compression=no",
        f"Ciphers={','.join(ciphers)}",
        f"ConnectTimeout={max(1, round(timeout_s if connect_timeout_s is None else connect_timeout_s))}",
        f"ServerAliveInterval={alive}",
        "ServerAliveCountMax=3",
        "LogLevel=ERROR",
    ]
    if alias:
        options.append(f"HostKeyAlias={alias}")
    words = ["ssh", "-F", "none", "-T", "-p", str(port), "-l", user, "-i", key_file.replace("%", "%%")]
    for option in options:
        words += ["-o", option]
    return [*words, "--", host, command]


def _quoted(path: str) -> str:
    return '"' + path.replace("%", "%%") + '"'
