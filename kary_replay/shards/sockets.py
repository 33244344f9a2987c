"""Shards behind TCP: a server that lets a shard answer, and the connection to it.

A connection begins with the token of the run, which both sides got by another way. Who does not
have it is not answered. What travels is said in messages.py.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import select
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from ..validation import as_count, as_positive
from .messages import HEAD, length_of

__all__ = ["ShardServer", "SocketTransport"]

TOKEN_NBYTES = 32
WELCOME = b"KRsh welcome\n"
CONNECT_SECONDS = 5.0
SEND_SECONDS = 30.0  # for a client to take something of its answers
STALL_SECONDS = 5.0  # between two parts of a message, for a client
MOST_SECONDS = 2e6  # that the system waits at once: some weeks
SHORT_SECONDS = 100e-6
BUFFERS_AT_ONCE = 64  # that one call sends; systems allow 1024


@runtime_checkable
class Service(Protocol):
    """Answers messages; any number of threads may ask at once."""

    def answer(self, request: memoryview) -> Sequence[Any]:
        """Return the answer as buffers; raise nothing."""

    def close(self) -> None:
        """Let go of what was opened to answer."""


class ShardServer:
    """Lets a shard answer whoever connects and has the token, each in a thread of its own.

    Parameters
    ----------
    service : ShardService
        Who answers; anything else with its ``answer`` and ``close`` will do.
    token : bytes [32]
        Such as `secrets.token_bytes(32)`; clients must have the same.
    host, port
        Where to listen. Use the machine's address in the network that the machines share; port 0 is
        any free one.

    Raises
    ------
    ValueError, TypeError
        If the token is not of 32 bytes, or service is nothing that answers.
    OSError
        If nobody can listen there.

    Notes
    -----
    Its threads end with the process, and do not keep it alive. Let one service at a time answer for
    a buffer: close a server, or kill its process, before another one takes its place.
    """

    def __init__(
        self, service: Service, token: bytes, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        _check_token(token)
        if not isinstance(service, Service):
            raise TypeError(f"service must be a ShardService, got {type(service).__name__}")
        self._service = service
        handler = type("Connection", (_Connection,), {"service": service, "token": token})
        self._server = _Server(host, port, handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="shard server", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for `SocketTransport`."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Listen no more, cut all connections, and wait until nobody is answered any more.

        An answer that takes longer than 5 seconds is not waited for: a disk may hang.
        """
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._service.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, handler: Any) -> None:
        self.connections: dict[threading.Thread, socket.socket] = {}
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, which `server_close` knows before it begins."""
        thread = threading.Thread(target=self._answer, args=(request, client_address), daemon=True)
        self.connections[thread] = request
        try:
            thread.start()
        except BaseException:
            del self.connections[thread]
            raise

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self.connections.pop(threading.current_thread(), None)

    def server_close(self) -> None:
        super().server_close()
        for thread, connection in list(self.connections.items()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(CONNECT_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that breaks is its client's affair."""


class _Connection(socketserver.BaseRequestHandler):
    """One client's connection."""

    service: Service
    token: bytes

    def handle(self) -> None:
        """Answer until the client goes."""
        connection = self.request
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its machine may go
            given = receive(connection, TOKEN_NBYTES, CONNECT_SECONDS)
            if not hmac.compare_digest(bytes(given), self.token):
                return
            connection.sendall(WELCOME)
            while True:
                request = receive_message(connection)
                send(connection, self.service.answer(request))
        except (OSError, ValueError):
            return  # gone, or it does not speak as clients do


class SocketTransport:
    """A connection to a shard's server; see `Transport`.

    Parameters
    ----------
    address : (str, int)
        Host and port of a `ShardServer`.
    token : bytes [32]
        The server's.
    timeout_seconds : float
        For the server to answer at first.

    Raises
    ------
    ConnectionError
        If nobody answers there, or the token is wrong.
    ValueError, TypeError
        If the address is no host and port, or the token not of 32 bytes.
    """

    def __init__(
        self, address: tuple[str, int], token: bytes, timeout_seconds: float = CONNECT_SECONDS
    ) -> None:
        _check_token(token)
        self.address, self._token = _checked_address(address), token
        self._line: _Line | None = None
        self.reconnect(as_positive("timeout_seconds", timeout_seconds))

    def reconnect(self, timeout_seconds: float) -> None:
        """Connect anew; what was under way is lost."""
        self.close()
        host, port = self.address
        where = f"{host}:{port}"
        try:
            patience = min(timeout_seconds, MOST_SECONDS)
            connection = socket.create_connection((host, port), patience)
        except OSError as error:
            raise ConnectionError(f"no shard answers at {where}: {error}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self._token)
            welcome = bytes(receive(connection, len(WELCOME), timeout_seconds))
        except TimeoutError as error:
            connection.close()
            raise ConnectionError(
                f"somebody listens at {where}, and says nothing for {timeout_seconds:.2g} seconds"
            ) from error
        except OSError as error:
            connection.close()
            raise ConnectionError(
                f"the shard at {where} refuses the token: give both sides the same"
            ) from error
        if welcome != WELCOME:
            connection.close()
            raise ConnectionError(f"what answers at {where} is no shard")
        self._line = _Line(connection)

    def send(self, message: Sequence[Any]) -> _Answer:
        """Send a message; the answer comes after those of the messages before."""
        line = self._line
        if line is None:
            raise ConnectionError("the connection to the shard is closed")
        return line.send(message)

    def close(self) -> None:
        """Cut the connection. In a forked child, the parent's goes on."""
        line, self._line = self._line, None
        if line is not None and line.pid == os.getpid():
            line.cut()


class _Line:
    """One connection to a shard's server, and the answers that it is to bring.

    Two threads may send and receive at once. Who sends receives meanwhile what has come: the server
    may be waiting for somebody to take its answers before it takes more requests.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.pid = os.getpid()
        self._socket = connection
        self._waiting: deque[_Answer] = deque()
        self._incoming = _Incoming()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._is_cut = False

    def send(self, message: Sequence[Any]) -> _Answer:
        """Send a message.

        ConnectionError if that fails, TimeoutError if nothing is taken; the line is of no use then.
        """
        answer = _Answer(self)
        self._refuse_child()
        with self._sending:
            if self._is_cut:
                raise ConnectionError("the connection to the shard is cut")
            self._waiting.append(answer)
            try:
                for _ in send_in_parts(self._socket, message):
                    self._await_room()
            except TimeoutError:
                self.cut()
                raise
            except OSError as error:
                self.cut()
                raise ConnectionError(f"the connection to the shard is cut: {error}") from error
            except BaseException:  # Ctrl-C: part of the message may have been sent
                self.cut()
                raise
        return answer

    def _await_room(self) -> None:
        """Wait until more can be sent; take what has come meanwhile."""
        happened = _wait(self._socket, select.POLLIN | select.POLLOUT, STALL_SECONDS)
        if not happened:
            raise TimeoutError(f"the shard has taken nothing for {STALL_SECONDS:g} seconds")
        if happened & select.POLLIN and not happened & select.POLLOUT:
            if self._receiving.acquire(blocking=False):
                try:
                    self._receive_some()
                finally:
                    self._receiving.release()
            else:  # another thread receives
                time.sleep(SHORT_SECONDS)

    def receive_until(self, wanted: _Answer, timeout_seconds: float) -> None:
        """Receive answers up to the wanted one; with a time-out of 0, those that have come.

        Raises TimeoutError if nothing has come for so long, and ConnectionError if it will not
        come. What has come of a message is kept.
        """
        self._refuse_child()
        with self._receiving:
            while wanted.data is None:
                if self._is_cut:
                    raise ConnectionError("the connection to the shard is cut")
                if not self._receive_some() and not _wait(
                    self._socket, select.POLLIN, timeout_seconds
                ):
                    raise TimeoutError(f"the shard has not answered in {timeout_seconds:g} seconds")

    def _refuse_child(self) -> None:
        """Raise ConnectionError in a forked child: two would take each other's answers."""
        if self.pid != os.getpid():
            raise ConnectionError("the connection to the shard is the parent's")

    def _receive_some(self) -> bool:
        """Take something of what has come of the answers; return False if nothing has."""
        try:
            if not self._incoming.receive(self._socket):
                return False
            if self._incoming.is_whole:
                data, self._incoming = self._incoming.data, _Incoming()
                self._waiting.popleft().data = data
            return True
        except (OSError, ValueError, IndexError) as error:
            self.cut()
            raise ConnectionError(f"the connection to the shard is cut: {error}") from error
        except BaseException:  # Ctrl-C: nobody knows whose answer is the next one
            self.cut()
            raise

    def cut(self) -> None:
        """Let go of the connection; whoever waits for it wakes."""
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        # not in `cut`: another thread may be receiving, and the descriptor would be another file's
        self._socket.close()


class _Incoming:
    """A message that comes part by part."""

    def __init__(self) -> None:
        self.data = memoryview(bytearray(HEAD.size))
        self._at, self._has_head = 0, False

    def receive(self, connection: socket.socket) -> bool:
        """Take what has come; return False if it is nothing, where the socket does not wait."""
        n = _receive_into(connection, self.data[self._at :])
        self._at += n
        if not self._has_head and self._at == HEAD.size:
            head, self._has_head = self.data, True
            self.data = memoryview(bytearray(HEAD.size + length_of(head)))
            self.data[: HEAD.size] = head
        return n > 0

    @property
    def has_begun(self) -> bool:
        """Whether something of it has come."""
        return self._at > 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._has_head and self._at == len(self.data)


class _Answer:
    """An answer that is under way; see `Pending`."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self.data: memoryview | None = None

    def has_come(self) -> bool:
        """Whether it has; one that never will is as good as come."""
        if self.data is None:
            try:
                self._line.receive_until(self, 0)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
        return True

    def result(self, timeout_seconds: float) -> memoryview:
        """Wait for it."""
        if self.data is None:
            self._line.receive_until(self, timeout_seconds)
        assert self.data is not None
        return self.data


def _check_token(token: bytes) -> None:
    if not isinstance(token, bytes) or len(token) != TOKEN_NBYTES:
        raise ValueError(f"token must be {TOKEN_NBYTES} bytes, such as secrets.token_bytes gives")


def _checked_address(address: Any) -> tuple[str, int]:
    """Return host and port; TypeError or ValueError if it is something else."""
    if not isinstance(address, (tuple, list)) or len(address) < 2:
        raise TypeError(f"address must be (host, port), got {address!r}")
    host, port = address[:2]
    if not isinstance(host, str):
        raise TypeError(f"address must be (host, port) with a host of type str, got {address!r}")
    return host, as_count("the port of address", port, 65535)


def _wait(connection: socket.socket, events: int, timeout_seconds: float) -> int:
    """Wait at most so long until something can be received or sent; return which of it."""
    try:
        poll = select.poll()
        poll.register(connection, events)
        found = poll.poll(math.ceil(1000 * min(timeout_seconds, MOST_SECONDS)))
    except (OSError, ValueError):
        return events  # it has been closed, which whoever uses it finds out
    if not found:
        return 0
    return found[0][1] & events or events  # an error: likewise


def send(connection: socket.socket, buffers: Sequence[Any]) -> None:
    """Send buffers one after the other, without joining them; for a socket that waits."""
    for _ in send_in_parts(connection, buffers):
        if not _wait(connection, select.POLLOUT, SEND_SECONDS):
            raise TimeoutError(f"nothing was taken for {SEND_SECONDS:g} seconds")


def send_in_parts(connection: socket.socket, buffers: Sequence[Any]) -> Iterator[None]:
    """Send buffers one after the other, without joining them; yield whenever there is no room."""
    views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    while views:
        try:
            n = connection.sendmsg(views[:BUFFERS_AT_ONCE], (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            yield
            continue
        while views and n >= len(views[0]):
            n -= len(views.pop(0))
        if n:
            views[0] = views[0][n:]


def receive(connection: socket.socket, n: int, timeout_seconds: float) -> memoryview:
    """Return the next n bytes.

    Raises ConnectionError if the other side has gone before, and TimeoutError if nothing has come
    for so long.
    """
    data, at = memoryview(bytearray(n)), 0
    while at < n:
        _await_more(connection, timeout_seconds)
        at += _receive_into(connection, data[at:])
    return data


def receive_message(connection: socket.socket) -> memoryview:
    """Wait for a message on a socket that waits; return it, with its head.

    ShardError if what comes is none, TimeoutError if it stalls once it has begun to come.
    """
    incoming = _Incoming()
    while not incoming.is_whole:
        if incoming.has_begun:
            _await_more(connection, STALL_SECONDS)
        incoming.receive(connection)
    return incoming.data


def _await_more(connection: socket.socket, timeout_seconds: float) -> None:
    """Wait until there is something to receive; TimeoutError if nothing has come for so long."""
    if not _wait(connection, select.POLLIN, timeout_seconds):
        raise TimeoutError(f"nothing has come for {timeout_seconds:g} seconds")


def _receive_into(connection: socket.socket, data: memoryview) -> int:
    """Take what has come; return how many bytes, 0 if another was faster where nobody waits."""
    try:
        n = connection.recv_into(data)
    except BlockingIOError:
        return 0
    if n == 0:
        raise ConnectionError("the other side has closed the connection")
    return n
