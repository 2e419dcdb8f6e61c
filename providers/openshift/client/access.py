"""The credentials of a kubeconfig, or of the pod that burstd runs in, and the connections made with them.

The only place that imports the ``kubernetes`` client. Its models and ``call_api`` are not used: what the latter takes
changed between the versions that burstd works with (29 on), and a machine is easier to read as the JSON that it is.
What is used is its configuration, with every way to authenticate that it knows, and its pool of connections.
"""

from __future__ import annotations

import os
import ssl
import threading
from pathlib import Path
from typing import Any, cast

import urllib3
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.config_exception import ConfigException

from burstd.domain.errors import AuthFailed
from providers.http_errors import short_message
from providers.openshift.client.time_limit import TimeLimitedCall

_READING = threading.Lock()
"""The client notes the file of a certificate before it has written it; another who reads the same would find none."""
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class KubeconfigAccess:
    """One reading of the credentials. Used from many threads; read again by making another."""

    def __init__(self, kubeconfig: Path | None, context: str, connections: int, limit_s: float) -> None:
        """Raises AuthFailed. ``connections`` are kept open at most; there may be more at a time.

        ``limit_s``: seconds for a program that makes tokens anew; here it is waited for without an end.
        """
        self._where = "the pod's service account" if _is_inside(kubeconfig) else _named(kubeconfig)
        configuration, reader = client.Configuration(), cast("Any", config)
        # Proxies from the environment are the client's business; repeating calls is burstd's.
        configuration.retries = False
        configuration.connection_pool_maxsize = connections
        # The program of another kubeconfig may hang for ever.
        locked = _READING.acquire(timeout=limit_s / 2)
        try:
            if _is_inside(kubeconfig):
                reader.load_incluster_config(client_configuration=configuration)
            else:
                reader.load_kube_config(
                    config_file=None if kubeconfig is None else str(kubeconfig),
                    context=context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
            pool = RESTClientObject(configuration).pool_manager
        except ConfigException as error:
            raise AuthFailed(f"cannot use {self._where}: {short_message(str(error))}") from None
        except OSError as error:
            raise AuthFailed(f"cannot read {self._where}: {error.strerror or type(error).__name__}") from None
        except Exception as error:  # noqa: BLE001 - parsers and plug-ins raise what they like, with secrets in it
            raise AuthFailed(f"cannot use {self._where}: {type(error).__name__}") from None
        finally:
            if locked:
                _READING.release()
        self.configuration: Any = configuration
        self.pool: urllib3.PoolManager = pool
        self._limit_s = limit_s
        self._tokens = TimeLimitedCall(self._headers, limit_s)

    @property
    def host(self) -> str:
        """The API server's address."""
        return str(self.configuration.host).rstrip("/")

    def headers(self) -> dict[str, str]:
        """What says who burstd is; a token that is about to expire is read or made anew. Raises AuthFailed."""
        try:
            return self._tokens.result()
        except TimeoutError:
            raise AuthFailed(f"{self._where} gives no token within {self._limit_s:.0f} s") from None

    def _headers(self) -> dict[str, str]:
        try:
            known = self.configuration.auth_settings().values()
        except Exception as error:  # noqa: BLE001 - see __init__
            raise AuthFailed(f"{self._where} gives no token: {type(error).__name__}") from None
        return {one["key"]: one["value"] for one in known if one["in"] == "header" and one["value"]}

    def tls(self) -> dict[str, Any]:
        """The same trust and certificates for a websocket, as websocket-client wants them."""
        said = self.configuration
        options: dict[str, Any] = {"cert_reqs": ssl.CERT_REQUIRED if said.verify_ssl else ssl.CERT_NONE}
        if not said.verify_ssl or said.assert_hostname is False:
            options["check_hostname"] = False
        names = {"ca_certs": "ssl_ca_cert", "certfile": "cert_file", "keyfile": "key_file"}
        options |= {key: value for key, name in names.items() if (value := getattr(said, name, None))}
        if server := getattr(said, "tls_server_name", None):
            options["server_hostname"] = server
        return options

    def proxy(self) -> str:
        """Address of the proxy to go through; empty: none."""
        manager = getattr(self.pool, "proxy", None)
        return str(manager) if manager is not None else ""

    def close(self) -> None:
        """Gives connections back."""
        self.pool.clear()


def _is_inside(kubeconfig: Path | None) -> bool:
    return kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and _IN_CLUSTER.exists()


def _named(kubeconfig: Path | None) -> str:
    return f"kubeconfig {kubeconfig or os.environ.get('KUBECONFIG') or '~/.kube/config'}"
