"""The other processes: agreeing with them before anything is sent, and noticing when one is gone.

Everything here goes through the key-value store that torch.distributed meets at. A thread of each
process counts there, twice a second; a process whose count stands still is dead, stopped or cut
off. Nobody reads the counts until something fails to come: then they tell the node that is really
gone from those that only wait for it.

The store lives in some process, which may itself be stopped, and then never answers: nothing here
waits for it without a deadline.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from itertools import zip_longest
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pushsum.names import flat

Answer = TypeVar("Answer")

BEAT = 0.5  #: seconds between two counts
SEARCH = 3 * BEAT  #: seconds that it takes to find out who is gone
LONGEST = 365 * 24 * 3600.0  #: timeout; C's times overflow later
SAME_STEPS = "all nodes must take the same steps"


class PeerLost(RuntimeError):
    """A node has left, died, stopped, or is cut off; the line says which."""


class Disagreement(ValueError):
    """The processes were not given the same thing."""


def take_own_device() -> None:
    """Processes on one machine use its accelerators in turn, if it has any."""
    if found := torch.accelerator.device_count():
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")) % found)


def check_timeout(timeout: float) -> None:
    """Refuse what is no number of seconds to wait."""
    if not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
        raise ValueError(f"timeout = {timeout!r}: give a number of seconds > 0, at most a year's")


class Meeting(NamedTuple):
    """Where processes form a group, and as which of how many."""

    store: Store
    rank: int
    n: int


class Peers:
    """All processes of a run, one per node; this one is `rank`, of `n`.

    Args:
        timeout: seconds of silence after which a peer counts as lost.
        meeting: where to form a process group, if there is none; None: as the environment says,
            which `torchrun` sets.

    Without `torchrun` and without a process group there is one node, which is alone. A process
    group that was formed here, not by the user, ends with the last object that uses it.
    """

    def __init__(self, timeout: float, meeting: Meeting | None = None) -> None:
        check_timeout(timeout)
        self.timeout = timeout
        self.patience = max(timeout / 2, timeout - SEARCH)  #: with a message or a word
        self._meeting = meeting  # C++ keeps its store, but not the Python of it
        self._meeting_point = _meeting_point(meeting)
        self._keeps_store = meeting is None and _kept_by_node_0()  #: if it is node 0
        self._answered = monotonic()  # when the store last did
        forms = not dist.is_initialized() and (meeting is not None or "WORLD_SIZE" in os.environ)
        if forms:
            self._meet(meeting)
        together = dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.n = dist.get_world_size() if together else 1
        self.next = (self.rank + 1) % self.n  #: the peer to look at where any may be at fault
        self.group: Any = None
        self._gathered = 0
        self._left = threading.Event()
        self._shares_group = False
        if together:
            self._use_group(forms)
        if self.n > 1:
            self._open_store()

    def _meet(self, meeting: Meeting | None) -> None:
        """Form the process group.

        Its name is its own: what an earlier group left in the store leads nowhere.
        """
        limit = timedelta(seconds=self.timeout)

        def meet() -> None:
            store, rank, n = meeting or next(rendezvous("env://", timeout=limit))
            place = PrefixStore(f"pushsum/group/{_how_many(store, rank)}", store)
            dist.init_process_group(store=place, rank=rank, world_size=n, timeout=limit)

        try:
            within(self.timeout + 2 * BEAT, meet)
        except (RuntimeError, TimeoutError) as error:
            raise PeerLost(
                f"not all processes connected to {self._meeting_point} within {self.timeout:g} s: "
                f"{_first_line(error)}"
            ) from None

    def _use_group(self, formed: bool) -> None:
        """Its own store counts who uses it in this process, if it was formed here."""
        self._common: Any = dist.distributed_c10d._get_default_store()
        users = f"pushsum/users/{self.rank}"
        if formed or self._ask(lambda: self._common.check([users])):
            self._ask(lambda: self._common.add(users, 1))
            self._shares_group = True

    def _open_store(self) -> None:
        number = self._ask(lambda: _how_many(self._common, self.rank))
        prefix = f"pushsum/{number}"
        self._store = PrefixStore(prefix, self._common)
        ranks = range(self.n)
        self._ask(lambda: [self._store.add(f"count/{r}", int(r == self.rank)) for r in ranks])
        own = PrefixStore(prefix, self._ask(self._common.clone))  # a connection of the thread's own
        self._beating = threading.Thread(target=self._beat, args=(own,), daemon=True)
        self._beating.start()

    # ----------------------------------------------------------------- all together

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Refuse, at every node, unless all were given the same facts; then open the channels."""
        if self.n == 1:
            return
        first, *others = self.all_gather(flat(facts))
        for node, other in enumerate(others, 1):
            for name in first | other:
                here, there = first.get(name, "nothing"), other.get(name, "nothing")
                if here != there:
                    here, there = _first_difference(here, there)
                    raise Disagreement(
                        f"the nodes differ in {name}: {here!r} at node 0, {there!r} at node {node}"
                    )
        limit = timedelta(seconds=self.patience)
        try:
            self.group = within(self.timeout, lambda: dist.new_group(timeout=limit))
        except (RuntimeError, TimeoutError) as error:
            raise self.lost(self.next, None, error) from None

    def backend_serves(self, device: torch.device) -> bool:
        """Whether the process group can carry tensors of this device: gloo only those of CPUs."""
        if self.n == 1:
            return True
        pairs = (part.split(":") for part in str(dist.get_backend_config()).split(","))
        backend = dict(pairs).get(device.type)
        return backend is not None and (device.type == "cpu" or backend != "gloo")

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum over all nodes, in place, at every node."""
        self._collective(lambda: dist.all_reduce(tensor, group=self.group))

    def broadcast(self, tensor: Tensor) -> None:
        """What node 0 has, in place, at every node."""
        self._collective(lambda: dist.broadcast(tensor.view(torch.uint8), 0, group=self.group))

    def _collective(self, operation: Callable[[], Any]) -> None:
        if self.n == 1:
            return
        try:
            operation()
        except RuntimeError as error:
            raise self.lost(self.next, None, error) from None

    def all_gather(self, value: Any, where: str = "") -> list[Any]:
        """What every process says here, as JSON; `where` is what others may be told."""
        if self.n == 1:
            return [value]
        self._gathered += 1
        self.tell(f"said/{self._gathered}/{self.rank}", [where, value])
        said = self.hear_all([f"said/{self._gathered}/{node}" for node in range(self.n)])
        if self._gathered > 1:  # all have heard what was said the time before
            key = f"told/said/{self._gathered - 1}/{self.rank}"
            self._ask(lambda: self._store.delete_key(key))
        return [value for _, value in said]

    def meet_after(self, t: int) -> None:
        """Wait until all nodes have come here; refuse unless they have taken the same steps."""
        for node, step in enumerate(self.all_gather(t, "average()")):
            if step != t:
                raise PeerLost(
                    f"node {self.rank} has taken {t} steps, node {node} {step}: {SAME_STEPS}"
                )

    # ----------------------------------------------------------------- besides messages

    def tell(self, key: str, value: Any) -> None:
        """Leave something for the others to hear, as JSON."""
        self._ask(lambda: self._store.set(f"told/{key}", json.dumps(value)))

    def told(self, *keys: str) -> bool:
        """Whether all of this has been left."""
        return self.n > 1 and self._there(*(f"told/{key}" for key in keys))

    def hear_all(self, keys: Sequence[str], patience: float | None = None) -> list[Any]:
        """Wait for what nodes leave, however long that takes, while all of them are alive.

        Nodes that leave have told everything, so that a word is missing only if one is gone.
        """
        patience = self.patience if patience is None else patience
        others = [node for node in range(self.n) if node != self.rank]
        counts, looked = self._counts(), monotonic()
        heard = dict.fromkeys(others, looked)
        while not self.told(*keys):
            sleep(0.005)
            if monotonic() < looked + BEAT:
                continue
            looked, before, counts = monotonic(), counts, self._counts()
            heard |= {node: looked for node in others if counts[node] != before[node]}
            quietest = min(others, key=lambda node: heard[node])
            silent = looked > heard[quietest] + patience
            if (silent or self._somebody_is_gone()) and not self.told(*keys):
                raise self.lost(quietest, None, TimeoutError("it was silent for some time"))
        return [json.loads(value) for value in self._values("told", keys)]

    def announce_failure(self, text: str) -> None:
        """Say why this node gives up, before the others find it gone."""
        if self.n > 1:
            with suppress(PeerLost):
                self._ask(lambda: self._store.compare_set("verdict", "", text))

    # ----------------------------------------------------------------- the store

    def _ask(self, action: Callable[[], Answer]) -> Answer:
        """Something of the store; it is waited for as for a peer."""
        seconds = max(2 * BEAT, self._answered + self.timeout - monotonic())
        try:
            return within(seconds, action)
        except (RuntimeError, TimeoutError) as error:
            how = "does not answer" if isinstance(error, TimeoutError) else "is gone"
            raise PeerLost(f"{self._meeting_point} {how}") from None

    def _there(self, *keys: str) -> bool:
        return bool(self._ask(lambda: self._store.check(list(keys))))

    def _somebody_is_gone(self) -> bool:
        signs = ["verdict", *(f"left/{node}" for node in range(self.n))]
        return self._ask(lambda: any(self._store.check([sign]) for sign in signs))

    def _values(self, section: str, keys: Sequence[Any]) -> list[bytes]:
        names = [f"{section}/{key}" for key in keys]
        found: list[bytes] = self._ask(lambda: self._store.multi_get(names))
        return found

    def _counts(self) -> list[int]:
        return [int(value) for value in self._values("count", range(self.n))]

    def _beat(self, store: Any) -> None:
        while not self._left.wait(BEAT):
            try:
                store.add(f"count/{self.rank}", 1)
            except RuntimeError:  # the meeting point is gone; the messages will tell
                return
            self._answered = monotonic()

    # ----------------------------------------------------------------- when something fails to come

    def lost(self, peer: int, t: int | None, error: Exception) -> PeerLost:
        """Which node is really gone, given that this one could not hear `peer` in step t."""
        when = "" if t is None else f" (noticed in step {t})"
        try:
            if not self._there("verdict"):  # the first that notices finds out, all others repeat it
                self.announce_failure(self._cause(peer, error))
            verdict = self._ask(lambda: self._store.get("verdict")).decode()
            return PeerLost(f"{verdict}{when}")
        except PeerLost as gone:
            return PeerLost(f"{gone}, nor was node {peer} heard{when}: {_first_line(error)}")

    def _cause(self, peer: int, error: Exception) -> str:
        before = self._counts()
        sleep(SEARCH)
        after = self._counts()
        silent = [r for r in range(self.n) if r != self.rank and before[r] == after[r]]
        left = [r for r in silent if self._there(f"left/{r}")]
        gone = [r for r in silent if r not in left and after[r] > 0]
        never = [r for r in silent if r not in left and after[r] == 0]
        if gone:
            return _lost(gone)
        if left:
            return self._why_it_left(left[0])
        if never:
            return f"{_nodes(never)} did not connect within {self.timeout:g} s"
        said = f"said/{self._gathered + 1}"
        if early := [r for r in range(self.n) if self.told(f"{said}/{r}")]:
            where, _ = json.loads(self._values("told", [f"{said}/{early[0]}"])[0])
            waiting = "waits" if len(early) == 1 else "wait"
            return f"{_nodes(early)} {waiting} in {where or 'a meeting of all'}: {SAME_STEPS}"
        return (
            f"node {peer} did not answer within {self.timeout:g} s, but is alive: "
            f"{_first_line(error)}"
        )

    def _why_it_left(self, node: int) -> str:
        step = int(self._ask(lambda: self._store.get(f"left/{node}")))
        if step == 0:
            return f"node {node} left before the first step: its own error says why"
        return f"node {node} left after step {step}: all nodes must take as many steps"

    # ----------------------------------------------------------------- at the end

    def leave(self, t: int) -> None:
        """Say that this node has left after step t, in good order."""
        if self._left.is_set():
            return
        self._left.set()
        if self.n > 1:
            with suppress(PeerLost):  # nobody may be left to tell
                self._ask(lambda: self._store.set(f"left/{self.rank}", str(t)))
            self._beating.join(timeout=2 * BEAT)
        if self.group is not None:
            dist.destroy_process_group(self.group)  # those who still wait for this node notice
        if self._shares_group and self._is_last_user():
            dist.destroy_process_group()
            if self.rank == 0 and self.n > 1 and self._keeps_store:
                self._outlast_the_others()

    def _is_last_user(self) -> bool:
        try:
            return bool(self._ask(lambda: self._common.add(f"pushsum/users/{self.rank}", -1)) == 0)
        except PeerLost:
            return False

    def _outlast_the_others(self) -> None:
        """The store ends with this process, and they may still need it."""
        deadline = monotonic() + 2 * SEARCH
        with suppress(PeerLost):
            while not self._there(*(f"left/{r}" for r in range(self.n))):
                if monotonic() > deadline:
                    return
                sleep(0.02)


def within(seconds: float, action: Callable[[], Answer]) -> Answer:
    """What `action` returns; TimeoutError if it has not by then, and perhaps never will."""
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(action())
        except Exception as problem:
            answer.set_exception(problem)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(seconds)


def _kept_by_node_0() -> bool:
    """Whether the store lives in the process of node 0: there is no launcher to keep it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _how_many(store: Store, rank: int) -> int:
    """How often this process has asked: the same number everywhere, if all do the same things."""
    asked: int = store.add(f"pushsum/made/{rank}", 1)
    return asked


def _meeting_point(meeting: Meeting | None) -> str:
    if meeting is not None:
        return "the launcher"
    name = "the processes' meeting point"
    if "MASTER_ADDR" not in os.environ:
        return name
    where = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT')}"
    return f"{name} ({where}{', in the process of node 0' * _kept_by_node_0()})"


def _lost(nodes: Sequence[int]) -> str:
    """What is said of nodes that have not been heard of.

    >>> _lost([1, 2, 4])
    'nodes 1, 2 and 4 are lost: their processes ended, stopped or are cut off'
    """
    if len(nodes) == 1:
        return f"{_nodes(nodes)} is lost: its process ended, stopped or is cut off"
    return f"{_nodes(nodes)} are lost: their processes ended, stopped or are cut off"


def _nodes(nodes: Sequence[int]) -> str:
    *some, last = map(str, nodes)
    return f"nodes {', '.join(some)} and {last}" if some else f"node {last}"


def _first_difference(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two lists, the first items that differ: a model has many parameters."""
    if not isinstance(one, list) or not isinstance(other, list):
        return one, other
    return next(pair for pair in zip_longest(one, other) if pair[0] != pair[1])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or "no answer"
