"""burstd's pages in Open OnDemand: passes requests to the control socket, as the user whose nginx started this.

Copy this folder to /var/www/ood/apps/sys/burstd of a host that has the socket. It needs Python 3.9 and nothing else.
"""

import html
import os
import socket
from http.client import HTTPConnection, HTTPException
from urllib.parse import quote

SOCKET = os.environ.get("BURSTD_SOCKET", "/run/burstd/control.sock")
TIMEOUT_S = 40.0
MAX_BODY_BYTES = 1 << 16
RETRY_S = 3
TO_DAEMON = ("ACCEPT", "ACCEPT_LANGUAGE", "HOST", "IF_NONE_MATCH", "ORIGIN", "SEC_FETCH_SITE")
NOT_TO_BROWSER = ("connection", "content-length", "date", "keep-alive", "server", "transfer-encoding")


def application(environ, start_response):
    """WSGI."""
    path = environ.get("PATH_INFO", "") or "/"
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = -1
    # Requests of /v1 bear no form token: any page could have the browser send them.
    if path == "/v1" or path.startswith("/v1/"):
        return _refuse(start_response, "404 Not Found", "Only pages are answered here.")
    if environ["REQUEST_METHOD"] not in ("GET", "POST"):
        return _refuse(start_response, "405 Method Not Allowed", "Pages are read with GET and forms sent with POST.")
    if not 0 <= length <= MAX_BODY_BYTES:
        return _refuse(start_response, "413 Content Too Large", f"A form may have {MAX_BODY_BYTES} bytes.")
    connection = HTTPConnection("burstd", timeout=TIMEOUT_S)
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(TIMEOUT_S)
        connection.sock.connect(SOCKET)
        answer = _ask(connection, environ, path, length)
        page = answer.read()
    except (OSError, HTTPException) as error:
        return _say_unreachable(environ, start_response, error)
    finally:
        connection.close()
    headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in NOT_TO_BROWSER]
    length_of_page = [] if answer.status == 304 else [("content-length", str(len(page)))]
    start_response(f"{answer.status} {answer.reason}", [*headers, *length_of_page])
    return [page]


def _ask(connection, environ, path, length):
    target = quote(path.encode("latin-1"), safe="/=&+:,")
    if query := environ.get("QUERY_STRING"):
        target += "?" + query
    body = environ["wsgi.input"].read(length) if environ["REQUEST_METHOD"] == "POST" else None
    connection.putrequest(environ["REQUEST_METHOD"], target, skip_host=True, skip_accept_encoding=True)
    for name in TO_DAEMON:
        if f"HTTP_{name}" in environ:
            connection.putheader(name.replace("_", "-"), environ[f"HTTP_{name}"])
    if environ.get("SCRIPT_NAME"):
        connection.putheader("X-Forwarded-Prefix", environ["SCRIPT_NAME"])
    if body is not None:
        connection.putheader("Content-Type", environ.get("CONTENT_TYPE", ""))
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    return connection.getresponse()


def _say_unreachable(environ, start_response, error):
    text = html.escape(f"burstd does not answer on {SOCKET}: {error}. This page tries again every {RETRY_S} seconds.")
    page = f'<!DOCTYPE html>\n<html lang="en"><title>burstd does not answer</title><p>{text}</p></html>\n'.encode()
    again = [("refresh", str(RETRY_S))] if environ["REQUEST_METHOD"] == "GET" else []
    headers = [("content-type", "text/html; charset=utf-8"), ("cache-control", "no-store"), *again]
    start_response("503 Service Unavailable", [*headers, ("content-length", str(len(page)))])
    return [page]


def _refuse(start_response, status, text):
    start_response(status, [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(text) + 1))])
    return [f"{text}\n".encode()]
