"""Frames that tell their numbers, from threads and processes that overwrite each other."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
from frame_writers import FollowsSlots
from rows import ViolationError, require

import kary_replay as kr

CAPACITY, STACK, N_ENVS, GAMMA = 60, 3, 2, 0.5
PRIME = 1_000_003
BODY = np.arange(40, dtype=np.int64) * 31
FRAME = kr.Field((40,), "int64")
# of the last frame of each observation
FIELDS = {"action": kr.Field((), "int64"), "next_number": kr.Field((), "int64")}


def frames_of(number):
    """Frames [..., 40] with these numbers."""
    return np.asarray(number)[..., None] * PRIME + BODY


def numbers_of(frames):
    """The numbers of frames, every word of which has to be of the same one."""
    number = frames[..., 0] // PRIME
    require((frames == frames_of(number)).all(axis=(1, 2)), "torn frame", number)
    return number


def check_batch(batch, n_step):
    """Both observations are the frames that the transition's two numbers say.

    The low 12 bits of a number count the frames of an episode.
    """
    before, after = numbers_of(batch.observation), numbers_of(batch.next_observation)
    back = np.arange(STACK - 1, -1, -1)
    for stacks, newest in ((before, batch.action), (after, batch.next_number)):
        t = newest & 0xFFF
        expected = newest[:, None] - np.minimum(back, t[:, None])
        require((stacks == expected).all(1), "wrong frame", stacks, expected)
    k = batch.next_number - batch.action
    require((k >= 1) & (k <= n_step), "window of another length", k)
    require(batch.reward == 2 - GAMMA ** (k - 1.0), "wrong return", batch.reward, k)


def make(n_step, shared=False):
    return kr.FrameReplayBuffer(
        CAPACITY, FRAME, FIELDS, STACK, n_step, alpha=0.5, seed=0, shared=shared
    )


class Actor:
    """Episodes of random length; numbers that no other actor has."""

    def __init__(self, buffer, who, writer=kr.FrameStackWriter):
        self.writer = writer(buffer, N_ENVS, GAMMA)
        self.random = np.random.default_rng(who)
        self.n_episodes = 0
        self.number = np.zeros(N_ENVS, np.int64)
        self.who = who
        self.begin(np.arange(N_ENVS))

    def begin(self, envs):
        for env in envs:
            self.n_episodes += 1
            self.number[env] = (self.who * 1_000_000 + self.n_episodes) << 12
        self.writer.reset(frames_of(self.number[envs]), env=envs)

    def step(self):
        # Mostly both environments, sometimes one: what the other has seen grows old.
        envs = (
            np.arange(N_ENVS)
            if self.random.random() < 0.9
            else self.random.integers(N_ENVS, size=1)
        )
        number = self.number[envs]
        truncated = self.random.random(len(envs)) < 0.1
        self.number[envs] = number + 1
        self.writer.add(
            action=number,
            next_number=number + 1,
            reward=np.ones(len(envs)),
            next_frame=frames_of(number + 1),
            terminated=np.zeros(len(envs), bool),
            truncated=truncated,
            env=envs,
        )
        self.begin(envs[truncated])


def sample_until(buffer, n_step, enough):
    """Draw, verify and update, until so many different transitions have come.

    More than the buffer has room for come only if somebody writes meanwhile.
    """
    seen = set()
    while len(seen) < enough:
        try:
            batch = buffer.sample(16)
        except (
            kr.errors.EmptyBufferError
        ):  # at the start, or while every stream has just begun anew
            continue
        check_batch(batch, n_step)
        seen.update(batch.action.tolist())
        buffer.update_priorities(batch.handle, np.linspace(0.1, 2.0, 16))


def run_threads(run_threaded, n_step, writer=kr.FrameStackWriter, enough=3_000):
    buffer = make(n_step)
    running = [True]

    def act(who):
        actor = Actor(buffer, who, writer)
        while running[0]:
            actor.step()

    def sample():
        try:
            sample_until(buffer, n_step, enough)
        finally:
            running[0] = False

    run_threaded([lambda: act(1), lambda: act(2), sample], timeout_seconds=300)
    buffer.check_invariants()


@pytest.mark.parametrize("n_step", [1, 3])
def test_threads_write_while_one_draws(run_threaded, n_step):
    run_threads(run_threaded, n_step)


def test_links_without_generations_are_noticed(run_threaded):
    with pytest.raises(ViolationError, match="wrong frame"):
        run_threads(run_threaded, 1, FollowsSlots, enough=1_000_000)


@pytest.mark.parametrize("fault", ["swapped", "torn", "shifted"])
def test_the_check_rejects_planted_faults(fault):
    buffer = make(2)
    actor = Actor(buffer, 1)
    for _ in range(100):
        actor.step()
    batch = buffer.sample(8)
    check_batch(batch, 2)
    if fault == "torn":
        batch.observation[3, 1, 7] += 1
    elif fault == "swapped":
        batch.observation[[2, 5]] = batch.observation[[5, 2]] + 0
        batch.observation[2] += PRIME
    else:
        batch.observation[:, 1:] = batch.observation[:, :-1].copy()
    with pytest.raises(ViolationError):
        check_batch(batch, 2)


def _act(descriptor, who):
    actor = Actor(kr.FrameReplayBuffer.attach(descriptor), who)
    while True:
        actor.step()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sharing needs Linux")
def test_processes_write_and_one_is_killed():
    """Whatever it was doing: the others go on, and its transitions are whole or never drawn."""
    buffer = make(3, shared=True)
    context = multiprocessing.get_context("spawn")
    actors = [
        context.Process(target=_act, args=(buffer.descriptor, who), daemon=True)
        for who in (1, 2, 3)
    ]
    try:
        for actor in actors:
            actor.start()
        sample_until(buffer, 3, 10 * CAPACITY)
        os.kill(actors[0].pid, signal.SIGKILL)
        actors[0].join()
        sample_until(buffer, 3, 10 * CAPACITY)
        assert all(actor.is_alive() for actor in actors[1:])
    finally:
        for actor in actors:
            actor.kill()
            actor.join()
    buffer.check_invariants()
