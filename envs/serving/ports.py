"""Ports that commands listen on."""

import socket

from ...errors import ConfigError


def bound_socket(host: str, port: int) -> socket.socket:
    """Take a port at once, so that a mistake shows before anything is loaded; nobody can connect yet.

    Raises:
        ConfigError: It cannot be taken.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must lie between 0 and 65535, got {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {error}") from error
    return listener
