"""A run whose nodes are processes: agreement, gathering for records, and stopping together."""

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor

from pushsum.engines.distributed.exchange import Exchange
from pushsum.engines.distributed.messages import Mail, Message
from pushsum.engines.distributed.peers import BEAT, PeerLost, Peers
from pushsum.engines.world import Abandoned, Kept
from pushsum.topology import Topology

Answer = TypeVar("Answer")

PATIENCE = 7.0  #: seconds from a signal to stop until the process ends, whatever the others do
AT_ONCE = 2.0  #: a second signal after so many seconds means it (launchers repeat the first)


class Failed(ValueError):
    """What the process that acts for all could not do."""


class Processes:
    """One node per process; node 0 acts for all.

    Args:
        peers: the processes.
        facts: what all of them must have been given alike.

    To stop, all nodes must have taken the same steps. A signal at any node is passed on through
    the store; every node then says which step it has begun, and all stop after the last of these.
    A thread does that, because the process may be waiting for a message.
    """

    name = "distributed"

    def __init__(self, peers: Peers, facts: Mapping[str, Any]) -> None:
        self.peers = peers
        self.nodes: Sequence[int] = [peers.rank]
        self.stopping = False
        self._begun = 0
        self._lock = threading.Lock()
        self._questions = 0
        self._over = threading.Event()
        self._signals: dict[int, Any] = {}
        try:
            peers.agree(facts)
        except (ValueError, PeerLost):
            peers.leave(0)
            raise

    def __enter__(self) -> "Processes":
        self._ear, bell = socket.socketpair()
        bell.setblocking(False)
        self._bell, self._bell_before = bell, signal.set_wakeup_fd(bell.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            self._signals[number] = signal.signal(number, lambda *_: None)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if problem is not None and not isinstance(problem, PeerLost | Failed):
            self.peers.condemn(f"node {self.peers.rank} gave up: {problem}")
        self._over.set()
        self._watcher.join()
        signal.set_wakeup_fd(self._bell_before)
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        self._ear.close()
        self._bell.close()
        self.peers.leave(self._begun)

    def exchange(self, topology: Topology, start: int, wire: torch.dtype | None) -> Kept:
        return Exchange(self.peers, topology, wire, start)

    # ----------------------------------------------------------------- one for all

    def once(self, action: Callable[[], Answer]) -> Answer:
        if self.peers.n == 1:
            return action()
        self._questions += 1
        key = f"once/{self._questions}"
        if self.peers.rank == 0:
            try:
                answer = action()
            except Exception as problem:
                self.peers.tell(key, {"problem": str(problem), "kind": type(problem).__name__})
                raise
            self.peers.tell(key, {"answer": answer})
            return answer
        told = self.peers.hear(key, 0)
        if "problem" in told:
            raise Abandoned if told["kind"] == Abandoned.__name__ else Failed(told["problem"])
        reply: Answer = told["answer"]
        return reply

    def listed(self, own: Sequence[int]) -> list[list[int]]:
        self._questions += 1
        if self.peers.n == 1:
            return [list(own)]
        self.peers.tell(f"listed/{self._questions}/{self.peers.rank}", list(own))
        ranks = range(self.peers.n)
        return [self.peers.hear(f"listed/{self._questions}/{r}", r) for r in ranks]

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]] | None:
        if self.peers.n == 1:
            return [dict(tensors)]
        self._questions += 1
        key = f"gather/{self._questions}"
        mail = Mail(self.peers, self._begun)
        own = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        if self.peers.rank != 0:
            shapes = {name: [str(t.dtype), list(t.shape)] for name, t in own.items()}
            self.peers.tell(f"{key}/{self.peers.rank}", shapes)
            mail.post([Message(0, tag, t) for tag, t in enumerate(own.values()) if t.numel()], [])
            for tag in range(len(own)):
                mail.wait_for_sent(tag)
            return None
        found = [own]
        device = next(iter(own.values())).device
        for rank in range(1, self.peers.n):
            theirs = {
                name: torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
                for name, (dtype, shape) in self.peers.hear(f"{key}/{rank}", rank).items()
            }
            theirs = {name: t.to(device) for name, t in theirs.items()}
            boxes = [Message(rank, tag, t) for tag, t in enumerate(theirs.values()) if t.numel()]
            mail.post([], boxes)
            for box in boxes:
                mail.wait(rank, box.tag)
            found.append(theirs)
        return found

    # ----------------------------------------------------------------- stopping together

    def may_begin(self, t: int) -> bool:
        with self._lock:
            if not self.stopping:
                self._begun = t
                return True
        if self.peers.n == 1:
            return False
        ranks = range(self.peers.n)
        begun = [self.peers.hear(f"begun/{r}", r, seconds=PATIENCE - 2) for r in ranks]
        return bool(t <= max(begun))

    def _watch(self) -> None:
        """Wait for a signal here or at another node."""
        asked = None
        while not self._over.is_set():
            rung, _, _ = select.select([self._ear], [], [], BEAT / 2)
            if rung:
                self._ear.recv(64)
            if asked is None:
                try:
                    if rung or self.peers.told("stop"):
                        asked = monotonic()
                        self._ask()
                except RuntimeError:
                    self._end("the processes' meeting point is gone")
            elif monotonic() > asked + PATIENCE or (rung and monotonic() > asked + AT_ONCE):
                self._end("could not stop in good order: a node does not answer")

    def _ask(self) -> None:
        with self._lock:
            self.stopping = True
            begun = self._begun
        if self.peers.n > 1:
            self.peers.tell("stop", 1)
            self.peers.tell(f"begun/{self.peers.rank}", begun)

    def _end(self, why: str) -> None:
        """The main thread cannot be reached within a message: end the process here."""
        print(f"pushsum: node {self.peers.rank}: {why}; go on with --resume", file=sys.stderr)
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(1)
