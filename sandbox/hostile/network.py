"""Programs that want out."""

from .attack import attack
from .program import BRIEF, HELD, HostileProgram, python, shell


def _attack(name: str, code: str) -> HostileProgram:
    return attack(name, "network", code)


def _shell(name: str, command: str) -> HostileProgram:
    return shell(name, "network", command, HELD, limits=BRIEF)


PROGRAMS = (
    _attack(
        "service of the host",
        """
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "127.1.2.3", "::1", "::ffff:127.0.0.1"):
            attempt(host, socket.create_connection, (host, CANARY_PORT), 0.3)
        """,
    ),
    _attack(
        "service of the host, without waiting",
        """
        def connect():
            one = socket.socket()
            one.setblocking(False)
            if one.connect_ex(("127.0.0.1", CANARY_PORT)) not in (0, errno.EINPROGRESS):
                raise OSError("refused")
            time.sleep(0.1)
            one.send(b"x")
        attempt("connect", connect)
        def fast_open():
            socket.socket().sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", CANARY_PORT))
        attempt("fast open", fast_open)
        """,
    ),
    _attack(
        "datagrams to the host",
        """
        # With an interface of its own a datagram may leave without reaching anybody; an answer may not come.
        def ask(host):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.settimeout(0.2)
            one.sendto(b"x", (host, CANARY_UDP_PORT))
            return one.recv(10)
        for host in ("127.0.0.1", "255.255.255.255", "224.0.0.1"):
            attempt(host, ask, host)
        """,
    ),
    _attack(
        "metadata of a cloud",
        """
        for host in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254", "169.254.170.2"):
            attempt(host, socket.create_connection, (host, 80), 0.3)
        """,
    ),
    _attack(
        "the world",
        """
        for host in ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "10.0.0.1", "172.17.0.1", "192.168.0.1"):
            for port in (53, 80, 443):
                attempt((host, port), socket.create_connection, (host, port), 0.05)
        """,
    ),
    _attack(
        "names of hosts",
        """
        for name in ("example.com", "example.org", "metadata.google.internal", "host.docker.internal"):
            attempt(name, socket.getaddrinfo, name, 80)
        """,
    ),
    _attack(
        "abstract sockets of the host",
        """
        for name in (CANARY_ABSTRACT, "/tmp/.X11-unix/X0", "/com/ubuntu/upstart", "dbus-test"):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
                attempt(name, lambda: socket.socket(socket.AF_UNIX, kind).connect("\\0" + name))
        """,
    ),
    _attack(
        "sockets in the host's files",
        """
        for path in (CANARY_SOCKET, "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
                     "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/0/bus"):
            attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
        """,
    ),
    _attack(
        "interfaces",
        """
        try: found = {name for _, name in socket.if_nameindex()}
        except OSError: found = set()
        # A kernel may have tunnels of its own in every namespace; what is up and leads out is not among them.
        if real := {name for name in found if name.startswith(("eth", "en", "wl", "docker", "veth", "br"))}:
            loot.append(real)
        """,
    ),
    _attack(
        "raw sockets",
        """
        for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 3), (17, 2, 3), (17, 10, 3)):
            attempt((family, kind), socket.socket, family, kind, protocol)
        """,
    ),
    _attack(
        "machine beside the network",
        """
        attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 22)))
        attempt("vsock datagram", lambda: socket.socket(40, socket.SOCK_DGRAM).bind((0xFFFFFFFF, 1024)))
        attempt("bluetooth", socket.socket, 31, 3, 1)
        attempt("can", socket.socket, 29, 3, 1)
        attempt("tipc", socket.socket, 30, 1, 0)
        attempt("xdp", socket.socket, 44, 3, 0)
        attempt("key", socket.socket, 15, 3, 2)
        """,
    ),
    _attack(
        "kernel's cryptography",
        """
        def digest():
            one = socket.socket(38, socket.SOCK_SEQPACKET, 0)
            one.bind(("hash", "sha256"))
        attempt("AF_ALG", digest)
        """,
    ),
    _attack(
        "changes its network",
        """
        import fcntl, struct
        def add_address():
            one = socket.socket(16, 3, 0)
            attributes = struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7]))
            header = struct.pack("IHHII", 16 + 8 + len(attributes), 20, 0x605, 1, 0)
            one.send(header + struct.pack("BBBBI", 2, 24, 0, 0, 1) + attributes)
            answer = one.recv(4096)
            if (code := struct.unpack_from("i", answer, 16)[0]) < 0:
                raise OSError(-code, "refused")
        attempt("address", add_address)
        def interface(request):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                fcntl.ioctl(one, request, struct.pack("16sH22x", b"lo", 0x40))
        attempt("flags", interface, 0x8914)
        attempt("tunnel", lambda: fcntl.ioctl(os.open("/dev/net/tun", os.O_RDWR), 0x400454CA, bytes(40)))
        """,
    ),
    _attack(
        "listens where others reach it",
        """
        def listen(host):
            one = socket.socket()
            one.bind((host, 0))
            one.listen()
            if one.getsockname()[0] not in ("127.0.0.1", "0.0.0.0"):
                return one.getsockname()
            raise OSError("only here")
        attempt("any", listen, socket.gethostname())
        """,
    ),
    _attack(
        "low ports and transparent sockets",
        """
        def transparent():
            with socket.socket() as one:
                one.setsockopt(socket.SOL_IP, 19, 1)
        attempt("transparent", transparent)
        def mark():
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, 36, 1)
        attempt("mark", mark)
        """,
    ),
    _attack(
        "passes descriptors to the host",
        """
        def pass_on():
            one = socket.socket(socket.AF_UNIX)
            one.connect("\\0" + CANARY_ABSTRACT)
            socket.send_fds(one, [b"x"], [1])
        attempt("pass", pass_on)
        """,
    ),
    _shell(
        "network of a shell",
        """
        for place in 127.0.0.1/$CANARY_PORT 169.254.169.254/80; do
            timeout 0.5 bash -c "echo x > /dev/tcp/$place" 2>/dev/null && echo out
        done
        echo held
        """,
    ),
    _shell(
        "programs that fetch",
        """
        for program in curl wget nc; do
            timeout 0.5 $program http://127.0.0.1:$CANARY_PORT/ 2>/dev/null && echo out
        done
        echo held
        """,
    ),
    python(
        "sockets within itself",  # are its own affair
        "network",
        """
        import socket
        try:
            one, other = socket.socketpair()
            one.sendall(b"held")
            print(other.recv(10).decode())
        except OSError: print("held")
        """,
        HELD,
    ),
)
