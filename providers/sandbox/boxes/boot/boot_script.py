"""What a box does when it boots: files, cloud-init's seed and settings, and the script that stands for systemd."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from providers.sandbox.boxes.boot.description import ENVIRONMENT, BoxFile

RUN_DIR = "/run/burstd-box"
BOOTED = f"{RUN_DIR}/booted"
_SSHD = ("/usr/sbin/sshd", "-E", "/var/log/sshd.log")
_KEY = "/etc/ssh/ssh_host_ed25519_key"
_SEED = "/var/lib/cloud/seed/nocloud"

# Only what makes sense where there is no disk to grow, no boot loader, no clock and no archive to install from.
_CLOUD_CFG = {
    "datasource_list": ["NoCloud"],
    "datasource": {"NoCloud": {"fs_label": None}},  # None: do not search block devices
    "network": {"config": "disabled"},
    "users": ["default"],
    "disable_root": True,
    "preserve_hostname": False,
    "ssh_genkeytypes": ["ed25519"],
    "ssh_deletekeys": False,
    "cloud_init_modules": [
        "bootcmd", "write-files", "set_hostname", "update_hostname", "users-groups", "ssh",
    ],
    "cloud_config_modules": ["set-passwords", "timezone", "runcmd"],
    "cloud_final_modules": [
        "write-files-deferred", "scripts-vendor", "scripts-per-once", "scripts-per-boot", "scripts-per-instance",
        "scripts-user", "ssh-authkey-fingerprints", "keys-to-console", "phone-home", "final-message",
    ],
    "system_info": {
        "distro": "debian",
        "default_user": {
            "name": "debian",
            "lock_passwd": True,
            "gecos": "Debian",
            "groups": ["adm", "sudo"],
            "sudo": ["ALL=(ALL) NOPASSWD:ALL"],
            "shell": "/bin/bash",
        },
        "paths": {"cloud_dir": "/var/lib/cloud/", "templates_dir": "/etc/cloud/templates/"},
        "ssh_svcname": "ssh",
    },
}  # fmt: skip
_LOGGING_CFG = """\
log_cfgs:
- |
  [loggers]
  keys=root,cloudinit
  [handlers]
  keys=log
  [formatters]
  keys=plain
  [logger_root]
  level=DEBUG
  handlers=log
  [logger_cloudinit]
  level=DEBUG
  qualname=cloudinit
  handlers=
  [handler_log]
  class=FileHandler
  level=DEBUG
  formatter=plain
  args=('/var/log/cloud-init.log', 'a', 'UTF-8')
  [formatter_plain]
  format=%(asctime)s - %(filename)s[%(levelname)s]: %(message)s
"""


def base_files(name: str, address: str) -> list[BoxFile]:
    """The identity of a host. No name server: a box has no way out, and asking should fail at once."""
    return [
        BoxFile("/etc/hostname", f"{name}\n"),
        BoxFile("/etc/hosts", f"127.0.0.1 localhost\n{address} {name}\n"),
        BoxFile("/etc/resolv.conf", ""),
        BoxFile("/etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444),
    ]


def cloud_init_files(name: str, user_data: str, meta_data: Mapping[str, object]) -> list[BoxFile]:
    """A NoCloud seed, settings that make cloud-init quick here, and the program that runs its stages."""
    meta = {"instance-id": f"i-{name}", "local-hostname": name, **meta_data}
    return [
        BoxFile(f"{_SEED}/user-data", user_data, 0o600),
        BoxFile(f"{_SEED}/meta-data", json.dumps(meta), 0o600),
        BoxFile("/etc/cloud/cloud.cfg", json.dumps(_CLOUD_CFG, indent=1)),
        BoxFile("/etc/cloud/cloud.cfg.d/05_logging.cfg", _LOGGING_CFG),
        BoxFile(f"{RUN_DIR}/cloud_boot.py", Path(__file__).with_name("cloud_boot.py").read_text(encoding="utf-8")),
    ]


def boot_script(services: Sequence[Sequence[str]], *, ssh: bool, cloud_init: bool) -> BoxFile:
    """A shell script: host keys and sshd (through cloud-init or at once), then each service in turn.

    A service is a command that returns when it is up, as daemons do; what fails is said on the console and skipped.
    """
    start_sshd = f"mkdir -p /run/sshd; {shlex.join(_SSHD)}"
    lines = ["echo booting $(hostname)"]
    if cloud_init:
        hook = ["sh", "-c", start_sshd] if ssh else []
        stages = shlex.join(["/usr/bin/python3", f"{RUN_DIR}/cloud_boot.py", *hook])
        lines.append(f"{stages} 2>&1 | tee -a /var/log/cloud-init-output.log")
    elif ssh:
        lines.append(f"[ -e {_KEY} ] || ssh-keygen -q -t ed25519 -N '' -C root@$(hostname) -f {_KEY}")
        lines.append(start_sshd)
        lines.append("echo '-----BEGIN SSH HOST KEY KEYS-----'")
        lines.append(f"cat {_KEY}.pub; echo '-----END SSH HOST KEY KEYS-----'")
    lines += [f"{shlex.join(service)} || echo {shlex.quote(shlex.join(service))} failed: $?" for service in services]
    lines.append(f"touch {BOOTED}")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in ENVIRONMENT.items()]
    return BoxFile(f"{RUN_DIR}/boot", "\n".join([*exports, *lines, ""]), 0o700)
