"""Workers on all nodes of a Ray cluster: actors everywhere, learners where the run was begun.

Ray finds nodes, starts a `Site` on each, and carries letters between them and this process. The
node of this process needs none: its workers are those of an ordinary backend of processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...version import VERSION
from ..allocation.cores import actors_for
from ..allocation.nodes import next_node, spread
from ..config import ConfigError, RunnerConfig
from ..failures import START_SECONDS
from ..flow import HostedFlow, Role
from ..messages import Problem, Saved
from ..streams import Part, Peer
from ..streams.members import LOST_SECONDS, PATIENCE_SECONDS
from ..workers import Seat
from .backend import Handle, Order
from .memory import SharedMemory
from .process import ProcessBackend, ProcessHandle
from .site import DRIVER, Answer, Ended, Give, Key, Kill, Letter, SavedState, Site, Start

__all__ = ["RayBackend"]

OLDEST = (2, 60)
CONNECT_SECONDS = 5.0
EXCHANGE_SECONDS = 0.02  # between two letters to a site
SLOWEST_LINK = 1e6  # bytes a second by which a site fetches parameters, before it counts as silent
AWAY_SECONDS = 1.0  # in which this process looked at no answer: it was stopped, or busy
NODES_SECONDS = 1.0  # between two looks at which nodes there are
AGAIN_SECONDS = 10.0  # before a node gets a site again, after one that failed
CLOSE_SECONDS = 3.0
LOG = logging.getLogger("kary_replay")
Worker = tuple[str, int]


class RayBackend:
    """Workers on the nodes of a cluster.

    Parameters
    ----------
    config : RunnerConfig
        The settings of the run, with the address of the cluster.
    interrupted : function
        Whether the run is to end; making room is given up then.

    Raises
    ------
    ConfigError
        If Ray is not installed or too old, or no cluster answers.
    """

    starts_anew = True

    def __init__(self, config: RunnerConfig, interrupted: Callable[[], bool]) -> None:
        self._config, self._interrupted = config, interrupted
        self._ray, self._is_ours = connect(config.ray_address)
        self._here: str = self._ray.get_runtime_context().get_node_id()
        self._n_crew = config.policy_workers or 0  # of each node
        self._names: dict[str, str] = {}  # addresses of nodes
        self._rooms: dict[str, float] = {}  # for actors, of the others
        self._room_here = 0.0
        self._look_at_nodes()
        rooms = [self._room_here, *self._rooms.values()]
        self.n_actors = n_actors_for(config, int(sum(rooms)) or 1)
        self._n_wanted = self.n_actors if config.actors == "auto" else int(config.actors)
        n_here, *n_there = spread(self._n_wanted, rooms)
        self._planned = dict(zip(self._rooms, n_there, strict=True))
        self._token = secrets.token_bytes(32)
        # Actors may come here that have lost their node, so there is room for a fair part of all.
        share = max(n_here / self._n_wanted, 1 / len(rooms))
        self.medium = SharedMemory(Part(0, share, self._token))
        self._processes = ProcessBackend(config, interrupted, self.medium)
        self._flow: HostedFlow | None = None
        self._sites: list[RemoteSite] = []  # that have joined
        self._coming: list[RemoteSite] = []
        self._n_sites = 0  # that there have ever been
        self._places: dict[Worker, RemoteSite | None] = {}  # None: here
        self._handles: dict[Worker, ProcessHandle | RemoteHandle] = {}
        self._moving: dict[Worker, RemoteSite] = {}
        # by streams: a version, a reference, and how many bytes it stands for
        self._broadcasts: dict[str, tuple[int, Any, int]] = {}
        self._next_look = self._looked = 0.0
        self._not_before: dict[str, float] = {}  # when nodes may get a site again

    # ---------------------------------------------------------------------- sites come and go

    def open(self, flow: HostedFlow) -> None:
        """Have a site made on every other node that gets actors, and let their streams join."""
        self._flow = flow
        self._processes.open(flow)
        for node, n_actors in self._planned.items():
            if n_actors:
                self._invite(node, n_actors)
        deadline = time.monotonic() + START_SECONDS
        while self._coming and not self._interrupted():
            for site in list(self._coming):
                try:
                    is_late = not self._take_in(site) and time.monotonic() > deadline
                except OSError as error:
                    if site.node in self._look_at_nodes():
                        raise
                    LOG.warning("%s; the run begins without it", error)
                    continue
                if is_late:
                    raise OSError(
                        f"the node {site.name} has had no room for a part of the run, of "
                        f"{site.n_cpus} CPUs, for {START_SECONDS:g} s: has somebody else taken "
                        "them? Give fewer actors"
                    )
            time.sleep(EXCHANGE_SECONDS)
        if self._interrupted():
            return
        for stream in flow.streams.values():
            stream.begin()
        self._next_look = time.monotonic() + NODES_SECONDS

    def _invite(self, node: str, n_actors: int) -> None:
        """Have a site made on a node."""
        assert self._flow is not None
        self._n_sites += 1
        part = Part(self._n_sites, n_actors / self._n_wanted, self._token)
        n_cpus = max(1, min(n_actors, int(self._rooms[node]))) + self._n_crew
        actor = (
            self._ray.remote(Site)
            .options(
                num_cpus=n_cpus,
                max_restarts=0,
                scheduling_strategy=_affinity(node),
            )
            .remote(
                VERSION,
                pickle.dumps((self._config, self._flow.env_factory)),
                self._n_wanted,
                part,
                self._flow.counters(),
                self._names[node],
                [os.path.abspath(path) for path in sys.path],
            )
        )
        name = f"{self._names[node]} ({node[:8]})"
        site = RemoteSite(self._ray, actor, part.number, node, name, n_cpus)
        self._coming.append(site)

    def _take_in(self, site: RemoteSite) -> bool:
        """Let the streams of a site join if it is ready; raise OSError if it has failed."""
        assert self._flow is not None
        try:
            addresses = site.result()
            if addresses is None:
                return False
            for name, stream in self._flow.streams.items():
                stream.joined(site.number, addresses.get(name))
        except Exception as error:
            self._coming.remove(site)
            close_all(self._ray, [site])
            raise OSError(f"the node {site.name} has no part of the run: {_said(error)}") from error
        self._coming.remove(site)
        self._sites.append(site)
        return True

    def _lose(self, site: RemoteSite, why: str) -> None:
        """Go on without a site, whose rows are gone."""
        assert self._flow is not None
        self._sites.remove(site)
        self._not_before[site.node] = time.monotonic() + AGAIN_SECONDS
        problem = f"the node {site.name}, and its rows with it, is gone: {why}"
        site.cause = Problem(problem, was_killed=True, is_blameless=True)
        for stream in self._flow.streams.values():
            stream.left(site.number)
        with contextlib.suppress(Exception):
            self._ray.kill(site.actor)

    def _look_at_nodes(self) -> list[str]:
        """Note the room on the nodes that are there, this one among them; return which they are."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        for node in alive:
            cpus, number = float(node["Resources"].get("CPU", 0.0)), node["NodeID"]
            cpus = max(0.0, cpus - self._n_crew)
            self._names[number] = node["NodeManagerAddress"]
            if number == self._here:  # where learners need room, too
                needed = self._config.learners * self._config.learner_threads
                self._room_here = max(0.0, cpus - needed)
            else:
                self._rooms[number] = cpus
        return [node["NodeID"] for node in alive]

    def _watch_nodes(self) -> None:
        """Invite nodes that have come, as long as there are actors for them."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + NODES_SECONDS
        try:
            alive = self._look_at_nodes()
        except Exception as error:  # the cluster's own; the run goes on as long as it can
            LOG.warning("the nodes of the cluster cannot be looked at: %s", _said(error))
            return
        there = [*self._sites, *self._coming]
        for node in set(alive) - {self._here} - {site.node for site in there}:
            rooms = [self._room_here, *(self._rooms[site.node] for site in there)]
            n_actors = spread(self._n_wanted, [*rooms, self._rooms[node]])[-1]
            if n_actors and now >= self._not_before.get(node, 0.0):
                self._invite(node, n_actors)
                break

    def _welcome(self) -> None:
        """Take in sites that are ready, and let actors move there."""
        for site in list(self._coming):
            try:
                if self._take_in(site):
                    self._move_to(site)
            except OSError as error:
                self._not_before[site.node] = time.monotonic() + AGAIN_SECONDS
                LOG.warning("%s", error)

    def _move_to(self, site: RemoteSite) -> None:
        """Let actors move to a site that has come, until it is as full as the others."""
        others = [None, *(one for one in self._sites if one is not site)]
        rooms = [self._room_of(one) for one in (*others, site)]
        for _ in range(spread(len(self._places), rooms)[-1]):
            counts = [self._count(one) for one in others]
            fullest = max(
                range(len(others)), key=lambda i: counts[i] / rooms[i] if rooms[i] else counts[i]
            )
            worker = next(
                (one for one, place in self._places.items() if place is others[fullest]), None
            )
            if worker is None:
                return
            self._places[worker] = self._moving[worker] = site
            why = f"it moves to the node {site.name}, which has joined"
            self._handles[worker].end(Problem(why, was_killed=True, is_blameless=True))

    def _count(self, place: RemoteSite | None) -> int:
        return sum(1 for one in self._places.values() if one is place)

    def _room_of(self, place: RemoteSite | None) -> float:
        return self._room_here if place is None else self._rooms[place.node]

    # --------------------------------------------------------------------------------- workers

    def start(self, role: Role, index: int, seat: Seat, state: Path | None) -> Handle:
        """Start a worker: of a role that may be anywhere, on the node that is filled least."""
        worker = role.kind, index
        if not role.is_anywhere:
            return self._processes.start(role, index, seat, state)
        self._places.pop(worker, None)
        site: RemoteSite | None = self._moving.pop(worker, None)
        if site not in self._sites:
            places = [None, *self._sites]
            counts = [self._count(place) for place in places]
            site = places[next_node(counts, [self._room_of(place) for place in places])]
        assert self._flow is not None
        for stream in self._flow.streams.values():
            stream.placed(worker, DRIVER if site is None else site.number)
        handle: ProcessHandle | RemoteHandle
        if site is None:
            handle = self._processes.start(role, index, seat, state)
        else:
            content = None if state is None else state.read_bytes()
            handle = site.start((role.kind, index, seat.incarnation), content)
        self._places[worker], self._handles[worker] = site, handle
        return handle

    def run(self, seconds: float) -> None:
        """Exchange letters with the sites for so long, or until somebody reports something."""
        deadline = time.monotonic() + seconds
        while not self._exchange():
            begun = time.monotonic()
            left = min(deadline - begun, EXCHANGE_SECONDS)
            if left <= 0:
                break
            self._processes.run(left)
            if time.monotonic() - begun < left / 2:  # somebody here has reported
                break

    def _exchange(self) -> bool:
        """Take the answers that have come, and send letters; return whether there is news."""
        if self._flow is None:
            return False
        if not self._interrupted() and not self._flow.is_complete:
            self._watch_nodes()
            self._welcome()
        is_news, now = False, time.monotonic()
        if now - self._looked > AWAY_SECONDS:
            for site in self._sites:
                site.forgive(now - self._looked)
        self._looked = now
        for site in list(self._sites):
            try:
                answer = site.result()
                if answer is not None:
                    is_news |= site.take(answer, self._flow)
            except Exception as error:
                self._lose(site, _said(error))
        waiting = [site for site in self._sites if site.is_due]
        if waiting:
            self._broadcast()
        for site in waiting:
            site.send(self._flow, self._broadcasts)
        return is_news

    def _broadcast(self) -> None:
        """Put what is to reach all sites where they fetch it, once for all."""
        assert self._flow is not None
        for name, stream in self._flow.streams.items():
            before = self._broadcasts.get(name, (0, None, 0))[0]
            newer = stream.broadcast(before)
            if newer is not None:
                version, content = newer
                try:
                    reference = self._ray.put((name, content))
                    self._broadcasts[name] = version, reference, n_bytes_of(content)
                except Exception as error:  # its store is full, or gone; the next one may succeed
                    LOG.warning("%s cannot be broadcast: %s", name, _said(error))

    def close(self) -> None:
        """End the sites, and leave the cluster unless the program had been in it before."""
        close_all(self._ray, [*self._sites, *self._coming])
        self._processes.close()
        if self._is_ours:
            self._ray.shutdown()


class RemoteSite:
    """A site, as the driver knows it.

    Parameters
    ----------
    ray : module
        Ray.
    actor : handle of an actor
        The site.
    number : int
        Of its part.
    node, name : str
        The node's number, and what messages call it.
    n_cpus : int
        CPUs that the site has asked for.
    """

    def __init__(
        self, ray: Any, actor: Any, number: int, node: str, name: str, n_cpus: int
    ) -> None:
        self._ray, self.actor = ray, actor
        self.number, self.node, self.name, self.n_cpus = number, node, name, n_cpus
        self.cause: Problem | None = None
        """Why it is gone."""
        self.heard_at = time.monotonic()
        """When it answered last."""
        self._handles: dict[Key, RemoteHandle] = {}
        self._commands: list[Start | Give | Kill] = []
        self._following: list[Worker] = []  # to be started: the site has to know all of them
        self._seen: dict[str, int] = {}  # versions of what was broadcast
        self._pending: Any = actor.addresses.remote()
        self._sent_at, self._patience = time.monotonic(), float("inf")
        self._cut_off_at: float | None = None  # when the connection broke, unless it came back
        self._resent_at = 0.0
        self._n_sent = 0
        self._last: tuple[Any, ...] = ()  # what was sent last

    # --------------------------------------------------------------------------------- letters

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next letter."""
        is_time = time.monotonic() - self._sent_at >= EXCHANGE_SECONDS
        return self._pending is None and (is_time or bool(self._commands))

    def result(self) -> Any:
        """Return what the last call came to; None if it has not come yet.

        What went wrong, or TimeoutError if it has been under way for longer than the patience: its
        machine may be busy with something else, or hang. A connection that is broken, and does not
        come back, says sooner that the site is gone.
        """
        if self._pending is None:
            return None
        now = time.monotonic()
        done, _ = self._ray.wait([self._pending], timeout=0)
        if not done:
            silent = now - self._sent_at
            if silent > self._patience:
                raise TimeoutError(f"it has not answered for {silent:.1f} s")
            return None
        pending, self._pending = self._pending, None
        try:
            answer = self._ray.get(pending)
        except self._ray.exceptions.ActorUnavailableError:  # it may have had the letter, or not
            if self._cut_off_at is None or now - self._resent_at > PATIENCE_SECONDS:
                self._cut_off_at = now  # it was there meanwhile
            is_over = now - self._cut_off_at > PATIENCE_SECONDS
            if not self._last or is_over or now - self._sent_at > self._patience:
                raise
            self._pending, self._resent_at = self.actor.exchange.remote(*self._last), now
            return None
        self._cut_off_at = None
        return answer

    def forgive(self, seconds: float) -> None:
        """Do not count so long a silence of the site: nobody has listened."""
        self._sent_at += seconds
        self._cut_off_at = None

    @property
    def _peer(self) -> Peer:
        there = frozenset((kind, index) for kind, index, _ in self._handles)
        return Peer(self.number, there.difference(self._following), tuple(self._following))

    def send(self, flow: HostedFlow, broadcasts: dict[str, tuple[int, Any, int]]) -> None:
        """Send a letter, and what was broadcast since the last one."""
        peer, commands = self._peer, self._commands
        told = {name: stream.told(peer) for name, stream in flow.streams.items()}
        self._commands, self._following = [], []
        fresh, n_bytes = [], 0
        for name, (version, reference, size) in broadcasts.items():
            if self._seen.get(name) != version:
                self._seen[name] = version
                fresh.append(reference)
                n_bytes += size
        self._n_sent += 1
        known = {name: one for name, one in told.items() if one is not None}
        letter = Letter(self._n_sent, known, commands)
        starts = any(isinstance(command, Start) for command in commands)
        # Ray delivers the letter when what was broadcast has been fetched.
        fetching = LOST_SECONDS + n_bytes / SLOWEST_LINK
        self._sent_at = time.monotonic()
        self._patience = max(fetching, START_SECONDS) if starts else fetching
        self._last = letter, *fresh
        self._pending = self.actor.exchange.remote(*self._last)

    def take(self, answer: Answer, flow: HostedFlow) -> bool:
        """Take over an answer; return whether there is news of workers."""
        self.heard_at = time.monotonic()
        peer = self._peer
        for name, told in answer.told.items():
            flow.streams[name].heard(peer, told)
        for key, event in answer.events:
            if key in self._handles:
                self._handles[key].take(event)
        return bool(answer.events)

    # --------------------------------------------------------------------------------- workers

    def start(self, key: Key, state: bytes | None) -> RemoteHandle:
        """Start a worker there."""
        handle = self._handles[key] = RemoteHandle(self, key)
        self._following.append(key[:2])
        self._commands.append(Start(key, state))
        return handle

    def command(self, command: Give | Kill) -> None:
        """Have something done there, unless it is gone."""
        if self.cause is None:
            self._commands.append(command)

    def forget(self, key: Key) -> None:
        """Forget a worker."""
        self._handles.pop(key, None)


class RemoteHandle:
    """A worker of a site."""

    answers_at_once = False

    def __init__(self, site: RemoteSite, key: Key) -> None:
        self._site, self._key = site, key
        self._reports: list[Any] = []
        self._problem: Problem | None = None
        self._has_ended = False

    @property
    def heard_at(self) -> float:
        """When the site answered last."""
        return self._site.heard_at

    def take(self, event: Any) -> None:
        """Note what the site tells of the worker."""
        if isinstance(event, Problem):
            self._problem = event
        elif isinstance(event, Ended):
            self._has_ended = True
        elif isinstance(event, SavedState):
            self._reports.append(self._saved(event))
        else:
            self._reports.append(event)

    def _saved(self, state: SavedState) -> Saved:
        """Write the state that has come where it was to be saved; return the worker's answer."""
        kind, index, _ = self._key
        if state.refusal:
            return Saved(state.folder, state.refusal)
        path = Path(state.folder) / f"{kind}-{index}.pt"
        try:
            path.with_suffix(".new").write_bytes(state.content)
            os.replace(path.with_suffix(".new"), path)
        except OSError as error:
            return Saved(state.folder, str(error))
        return Saved(state.folder)

    def order(self, order: Order, argument: Any = None) -> None:
        """Send an order with the next letter."""
        self._site.command(Give(self._key, order, argument))

    def reports(self) -> list[Any]:
        """Return what has come."""
        reports, self._reports = self._reports, []
        return reports

    def cause_of_death(self) -> Problem | None:
        """Return what became of the worker, or of its node."""
        return self._problem or self._site.cause

    def end(self, why: Problem) -> None:
        """End the worker, and give this as the cause of its death."""
        self.kill()
        self._problem = why

    def kill(self) -> None:
        """End the worker with the next letter."""
        self._site.command(Kill(self._key))
        self._site.forget(self._key)
        self._has_ended = True

    @property
    def has_ended(self) -> bool:
        """Whether the worker's process has ended, as far as it is known."""
        return self._has_ended or self._site.cause is not None


def n_actors_for(config: RunnerConfig, n_cpus: int) -> int:
    """Return how many actors suit so many CPUs."""
    if config.learns_from == "replay":
        return n_cpus
    options: Any = config.options
    return actors_for(options.n_envs, config.groups, n_cpus)


def close_all(ray: Any, sites: Sequence[RemoteSite]) -> None:
    """End sites, and all that they have started."""
    with contextlib.suppress(Exception):
        closing = [site.actor.close.remote() for site in sites]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
    for site in sites:
        with contextlib.suppress(Exception):
            ray.kill(site.actor)


def connect(address: str | None) -> tuple[Any, bool]:
    """Return Ray, in a cluster, and whether this call has led there.

    Raises ConfigError if Ray is missing or too old, or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "backend='ray' needs Ray: pip install \"kary-replay[ray]\", or use backend='process'"
        ) from None
    found = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"backend='ray' needs Ray {oldest} or newer, {ray.__version__} is installed: "
            'pip install --upgrade "kary-replay[ray]"'
        )
    if ray.is_initialized():
        return ray, False
    wanted = address or os.environ.get("RAY_ADDRESS", "auto")
    if wanted not in ("auto", "local"):
        _refuse_silent(wanted)
    try:
        ray.init(address=address, logging_level=logging.WARNING)
    except Exception as error:  # which it has many of
        raise ConfigError(f"ray_address={address!r} leads to no cluster: {_said(error)}") from None
    return ray, True


def _refuse_silent(address: str) -> None:
    """Raise ConfigError if nobody listens at an address: Ray itself would try for long."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        raise ConfigError(
            f"ray_address must be 'auto' or HOST:PORT of a cluster that this machine is a node of, "
            f"got {address!r}; from outside a cluster, hand the run to it with `ray job submit`"
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"ray_address={address!r}: nobody answers there: {error}") from None


def _affinity(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def n_bytes_of(content: Any) -> int:
    """Return how many bytes the arrays of a broadcast have."""
    parts = content if isinstance(content, (list, tuple)) else [content]
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)


def _said(error: BaseException) -> str:
    """Return the last line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
