"""A run whose nodes are processes: agreement, gathering for records, and stopping together."""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor

from pushsum.engines.distributed.exchange import Exchange
from pushsum.engines.distributed.messages import Ledger, Mail
from pushsum.engines.distributed.peers import BEAT, PeerLost, Peers
from pushsum.engines.engine import Engine, Setup
from pushsum.engines.runtime import STOPPED, Abandoned, Stopped

Answer = TypeVar("Answer")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 7.0  #: seconds from a signal to stop until the process ends, whatever the others do
AT_ONCE = 2.0  #: a second signal after so many seconds means it (launchers repeat the first)


class Failed(ValueError):
    """What the process that acts for all could not do."""


class Processes:
    """One node per process; node 0 acts for all.

    Args:
        peers: the processes.
        facts: what all of them must have been given alike.
        last_words: called with the reason before the process is ended in the middle of something.

    To stop, all nodes must have taken the same steps. A signal at any node is passed on through
    the store; every node then says in which step it has begun to send, and all stop after the last
    of these. A thread does that, because the process may be computing, or waiting for a message.
    """

    name = "distributed"

    def __init__(
        self, peers: Peers, facts: Mapping[str, Any], last_words: Callable[[str], None] = print
    ) -> None:
        self.peers, self.facts, self.last_words = peers, facts, last_words
        self.nodes: Sequence[int] = [peers.rank]
        self.stopping = False
        self._begun = 0
        self._lock = threading.Lock()
        self._agreed = False
        self._over = threading.Event()
        self._signals: dict[int, Any] = {}

    def __enter__(self) -> "Processes":
        self._ear, bell = socket.socketpair()
        bell.setblocking(False)
        self._bell, self._bell_before = bell, signal.set_wakeup_fd(bell.fileno())
        for number in SIGNALS:
            self._signals[number] = signal.signal(number, lambda *_: None)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        try:
            self.peers.agree(self.facts)
        except (ValueError, PeerLost):
            self._close()
            raise
        self._agreed = True
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if problem is not None and not isinstance(problem, PeerLost | Failed | Stopped):
            self.peers.announce_failure(f"node {self.peers.rank} gave up: {problem}")
        self._close()

    def _close(self) -> None:
        signal.set_wakeup_fd(self._bell_before)
        for number, handler in self._signals.items():
            signal.signal(number, handler)
        with self._lock:
            self._over.set()
        self._watcher.join(timeout=BEAT)  # it may be waiting for the store
        self.peers.leave(self._begun)

    def engine(self, setup: Setup) -> Engine:
        return Exchange(self.peers, setup)

    # ----------------------------------------------------------------- one for all

    def on_leader(self, action: Callable[[], Answer]) -> Answer:
        own: dict[str, Any] = {}
        if self.peers.rank == 0:
            try:
                own = {"answer": action()}
            except Exception as problem:
                self.peers.all_gather({"problem": str(problem), "kind": type(problem).__name__})
                raise
        told = self.peers.all_gather(own)[0]
        if "problem" in told:
            raise Abandoned if told["kind"] == Abandoned.__name__ else Failed(told["problem"])
        reply: Answer = own.get("answer", told["answer"])
        return reply

    def all_gather(self, own: Sequence[int]) -> list[list[int]]:
        return self.peers.all_gather(list(own))

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]] | None:
        device = next(iter(tensors.values())).device  # one back end carries them all
        own = {name: tensor.detach().to(device).contiguous() for name, tensor in tensors.items()}
        # all nodes have come this far when the first message is posted, however long it took them
        shapes = self.peers.all_gather({k: [str(t.dtype), list(t.shape)] for k, t in own.items()})
        mail = Mail(self.peers, self._begun, Ledger())
        if self.peers.rank != 0:
            for tag, tensor in enumerate(own.values()):
                mail.post(tag, {0: tensor} if tensor.numel() else {}, {})
                mail.wait_for_sent(tag)
            return None
        found = [own, *(_empty(theirs, device) for theirs in shapes[1:])]
        for rank, theirs in enumerate(found[1:], 1):
            for tag, tensor in enumerate(theirs.values()):
                if tensor.numel():
                    mail.post(tag, {}, {rank: tensor})
                    mail.wait(rank, tag)
        return found

    # ----------------------------------------------------------------- stopping together

    def agree_to_start(self, t: int) -> bool:
        with self._lock:
            if not self.stopping:
                self._begun = t
                return True
        if self.peers.n == 1:
            return False
        keys = [f"begun/{rank}" for rank in range(self.peers.n)]
        return bool(t <= max(self.peers.hear_all(keys, patience=PATIENCE - 2)))

    def _watch(self) -> None:
        """Wait for a signal here or at another node."""
        with self._ear, self._bell:
            self._listen()

    def _listen(self) -> None:
        asked = None
        while not self._over.is_set():
            ringing, _, _ = select.select([self._ear], [], [], BEAT / 2)
            rung = bool(ringing) and any(number in SIGNALS for number in self._ear.recv(64))
            if rung and not self._agreed:
                self.peers.announce_failure(
                    f"node {self.peers.rank} was told to stop before the first step"
                )
                self._end("stopped before the first step", STOPPED)
            elif asked is None:
                try:
                    if rung or self.peers.told("stop"):
                        asked = monotonic()
                        self._ask()
                except PeerLost as loss:
                    self._end(str(loss))
            elif rung and monotonic() > asked + AT_ONCE:
                self._end("told to stop a second time")
            elif monotonic() > asked + PATIENCE:
                self._end(f"told to stop {PATIENCE:g} s ago, but {self._obstacle()}")

    def _ask(self) -> None:
        with self._lock:
            self.stopping = True
            begun = self._begun
        if self.peers.n > 1:
            self.peers.tell("stop", 1)
            self.peers.tell(f"begun/{self.peers.rank}", begun)

    def _obstacle(self) -> str:
        try:
            for node in range(self.peers.n):
                if self.peers.n > 1 and not self.peers.told(f"begun/{node}"):
                    return f"node {node} does not answer"
        except PeerLost as loss:
            return str(loss)
        return "what was begun takes longer, here or at another node"

    def _end(self, why: str, code: int = 1) -> None:
        """The main thread cannot be reached within a message or a pass: end the process here."""
        with self._lock:
            if not self._over.is_set():
                self.last_words(why)
                os._exit(code)


def _empty(shapes: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    return {
        name: torch.empty(shape, dtype=getattr(torch, kind.removeprefix("torch.")), device=device)
        for name, (kind, shape) in shapes.items()
    }
