"""The other processes: agreeing with them before anything is sent, and noticing when one is gone.

Everything here goes through the key-value store that torch.distributed meets at. A thread of each
process counts there, twice a second; a process whose count stands still is dead, stopped or cut
off. Nobody reads the counts until a message fails to come: then they tell the node that is really
gone from those that only wait for it.
"""

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count, zip_longest
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pushsum.names import flat

BEAT = 0.5  #: seconds between two counts
_numbers = count()  # every process makes its peers in the same order


class PeerLost(RuntimeError):
    """A node has left, died, stopped, or is cut off; the line says which."""


class Disagreement(ValueError):
    """The processes were not given the same thing."""


class Peers:
    """All processes of a run, one per node; this one is `rank`, of `n`.

    Args:
        timeout: seconds of silence after which a peer counts as lost.

    Without `torchrun` and without a process group there is one node, which is alone.
    """

    def __init__(self, timeout: float) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout = {timeout!r}: give a number of seconds > 0")
        self.timeout = timeout
        self._ours = not dist.is_initialized() and "WORLD_SIZE" in os.environ
        number = next(_numbers)
        if self._ours:
            limit = timedelta(seconds=timeout)
            meeting, rank, n = next(rendezvous("env://", timeout=limit))
            # a name of its own: what an earlier group left in the store leads nowhere
            place = PrefixStore(f"pushsum/group/{number}", meeting)
            dist.init_process_group(store=place, rank=rank, world_size=n, timeout=limit)
        together = dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.n = dist.get_world_size() if together else 1
        self.group: Any = None
        self._left = threading.Event()
        if self.n > 1:
            store: Any = dist.distributed_c10d._get_default_store()
            prefix = f"pushsum/{number}"
            self._store = PrefixStore(prefix, store)
            own = PrefixStore(prefix, store.clone())  # a connection of the thread's own
            self._beating = threading.Thread(target=self._beat, args=(own,), daemon=True)
            self._beating.start()

    # ----------------------------------------------------------------- before the first message

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Refuse, at every node, unless all were given the same facts; then open the channels."""
        if self.n == 1:
            return
        self._store.set(f"facts/{self.rank}", json.dumps(flat(facts)))
        first, *others = (json.loads(self._facts_of(node)) for node in range(self.n))
        for node, other in enumerate(others, 1):
            for name in first | other:
                here, there = first.get(name, "nothing"), other.get(name, "nothing")
                if here != there:
                    here, there = _first_difference(here, there)
                    raise Disagreement(
                        f"the nodes differ in {name}: {here!r} at node 0, {there!r} at node {node}"
                    )
        self.group = dist.new_group(timeout=timedelta(seconds=self.timeout))

    def _facts_of(self, node: int) -> bytes:
        deadline = monotonic() + self.timeout
        while not self._store.check([f"facts/{node}"]):
            # it may have given its facts and left since the line above
            if self._store.check([f"left/{node}"]) and not self._store.check([f"facts/{node}"]):
                raise PeerLost(f"node {node} left before the first step: its own error says why")
            if monotonic() > deadline:
                raise PeerLost(f"node {node} did not come within {self.timeout:g} s")
            sleep(0.01)
        answer: bytes = self._store.get(f"facts/{node}")
        return answer

    def backend_serves(self, device: torch.device) -> bool:
        """Whether the process group can carry tensors of this device."""
        return self.n == 1 or device.type in str(dist.get_backend_config())

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum over all nodes, in place, at every node."""
        if self.n == 1:
            return
        try:
            dist.all_reduce(tensor, group=self.group)
        except RuntimeError as error:
            raise self.lost((self.rank + 1) % self.n, None, error) from None

    # ----------------------------------------------------------------- besides messages

    def tell(self, key: str, value: Any) -> None:
        """Leave something for the others to hear, as JSON."""
        self._store.set(f"told/{key}", json.dumps(value))

    def told(self, key: str) -> bool:
        """Whether somebody has left this."""
        return self.n > 1 and bool(self._store.check([f"told/{key}"]))

    def hear(self, key: str, teller: int, seconds: float | None = None) -> Any:
        """Wait for what a node leaves: however long that takes, while it is alive, or `seconds`."""
        patience = self.timeout if seconds is None else seconds
        beats, looked = -1, monotonic()
        deadline = looked + patience
        while not self.told(key):
            sleep(0.005)
            if monotonic() > looked + BEAT and seconds is None:
                looked = monotonic()
                now = self._store.add(f"count/{teller}", 0)
                if now != beats:
                    beats, deadline = now, looked + patience
            if monotonic() > deadline:
                raise self.lost(teller, None, TimeoutError(f"it did not tell {key}"))
        return json.loads(self._store.get(f"told/{key}"))

    def condemn(self, text: str) -> None:
        """Say why this node gives up, before the others find it gone."""
        if self.n > 1:
            with suppress(RuntimeError):
                self._store.compare_set("verdict", "", text)

    # ----------------------------------------------------------------- when a message fails

    def lost(self, peer: int, t: int | None, error: Exception) -> PeerLost:
        """Which node is really gone, given that this one could not hear `peer` in step t."""
        when = "" if t is None else f" (noticed in step {t})"
        try:
            return PeerLost(f"{self._verdict(peer, error)}{when}")
        except RuntimeError:  # the store is gone, with the process that kept it
            return PeerLost(
                f"node {peer} is lost, and the processes' meeting point with it{when}: "
                f"{_first_line(error)}"
            )

    def _verdict(self, peer: int, error: Exception) -> str:
        """What the first that noticed has found; all others repeat it."""
        if not self._store.check(["verdict"]):
            before = self._counts()
            sleep(3 * BEAT)
            after = self._counts()
            silent = [r for r in range(self.n) if r != self.rank and before[r] == after[r]]
            gone = [r for r in silent if not self._store.check([f"left/{r}"])]
            left = [r for r in silent if r not in gone]
            if gone:
                names = " and ".join(map(str, gone))
                text = f"node {names} is lost: its process ended, stopped or is cut off"
            elif left:
                last = self._store.get(f"left/{left[0]}").decode()
                text = f"node {left[0]} left after step {last}: all nodes must take as many steps"
            else:
                text = (
                    f"node {peer} did not answer within {self.timeout:g} s, but is alive: "
                    f"{_first_line(error)}"
                )
            self._store.compare_set("verdict", "", text)
        answer: str = self._store.get("verdict").decode()
        return answer

    def _counts(self) -> list[int]:
        return [self._store.add(f"count/{node}", 0) for node in range(self.n)]

    def _beat(self, store: Any) -> None:
        while not self._left.wait(BEAT):
            try:
                store.add(f"count/{self.rank}", 1)
            except RuntimeError:  # the meeting point is gone; the messages will tell
                return

    # ----------------------------------------------------------------- at the end

    def leave(self, t: int) -> None:
        """Say that this node has left after step t, in good order."""
        if self._left.is_set():
            return
        self._left.set()
        if self.n > 1:
            with suppress(RuntimeError):  # nobody may be left to tell
                self._store.set(f"left/{self.rank}", str(t))
            self._beating.join()
        if self.group is not None and not self._ours:
            dist.destroy_process_group(self.group)  # those who still wait for this node notice
        if self._ours:
            dist.destroy_process_group()


def _first_difference(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two lists, the first items that differ: a model has many parameters."""
    if not isinstance(one, list) or not isinstance(other, list):
        return one, other
    return next(pair for pair in zip_longest(one, other) if pair[0] != pair[1])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
