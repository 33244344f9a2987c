"""Shards of a sharded replay buffer, here or on other machines, and the ways that lead to them."""

from .remote_shard import RemoteShard
from .service import ShardService
from .sockets import ShardServer, SocketTransport
from .transport import LocalTransport, Pending, Transport

__all__ = [
    "LocalTransport",
    "Pending",
    "RemoteShard",
    "ShardServer",
    "ShardService",
    "SocketTransport",
    "Transport",
]
