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
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Event loops send small answers at once (TCP_NODELAY) only where the socket's protocol is said to be TCP; else
        # an answer's body waits up to 40 ms for the client's word that it has the head.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {error}") from error
    return listener
