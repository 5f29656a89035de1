"""The engine whose nodes are processes: each holds one row.

Weights of an exchange come from the buffers as the one before left them, so that they are known
before anything leaves.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from pushsum import protocol
from pushsum.engines import tree
from pushsum.engines.arithmetic import BLOCK, column_blocks, ring_bytes
from pushsum.engines.distributed.buffers import Heard, Memory
from pushsum.engines.distributed.messages import Ledger
from pushsum.engines.distributed.peers import Peers
from pushsum.engines.distributed.rounds import MessageRound, SumRound
from pushsum.engines.engine import Moment, Setup
from pushsum.protocol import Got, Gradient, Known, Sent, State, Step
from pushsum.weighting import View

BUCKET = 4 * BLOCK  #: elements that travel as one message


class Exchange:
    """One node per process; see `pushsum.engines.engine.Engine`.

    Args:
        peers: the processes; they have agreed on everything that sizes depend on.
        setup: what the run is made of.
    """

    def __init__(self, peers: Peers, setup: Setup) -> None:
        if setup.faults is not None:
            raise ValueError(
                "faults are simulated: leave the section faults out, or run --engine simulator"
            )
        self.peers, self.setup = peers, setup
        self.topology, self.weighting = setup.topology, setup.algorithm.weighting
        self.nodes = torch.tensor([peers.rank])
        self.ledger = Ledger()
        self.seconds = self.ledger.seconds  #: what the exchanges have cost so far, by phase
        self.pool: list[Tensor] = []  #: vectors to receive into
        #: of so many numbers: how many are pushed, pulled and averaged
        self.vectors = lru_cache(1)(partial(protocol.what_is_sent, setup.algorithm, peers.n))
        self._is_complete = lru_cache(64)(
            lambda number: self.topology.edges(number).shape[1] == peers.n**2
        )

    @property
    def bytes(self) -> int:
        """What this node has sent so far."""
        return self.ledger.bytes

    @property
    def collective(self) -> bool:
        """Whether all exchanges are by all-reduce instead of by messages along the edges."""
        cycle = self.topology.cycle
        return cycle is not None and all(map(self._by_all_reduce, range(1, cycle + 1)))

    def _by_all_reduce(self, number: int) -> bool:
        """Whether everybody gives the same to everybody."""
        plain = self.peers.n > 1 and self.setup.wire is None
        return plain and self.weighting.name == "uniform" and self._is_complete(number)

    # ----------------------------------------------------------------- steps

    def begin(self, x0: Tensor) -> Moment:
        """Before step 1."""
        return self.setup.begin(x0, self.nodes)

    def advance(self, now: Moment, gradient: Gradient, last: bool = False) -> Moment:
        """One step. `now` stays as it is, unless it is used for the last time."""
        t, algorithm, d = now.t + 1, self.setup.algorithm, now.state.x.shape[1]
        if algorithm.mean_gradient:
            gradient = Known(self.average(gradient()))
        step, everything = NodeStep(self, d), slice(0, d)
        step.begin(self.setup.step(t, self.nodes), now.state, now.memory, last)
        direction = step.direct(everything, gradient)
        move, kept = self.setup.optimizer.move(now.optimizer, now.y, direction, t)
        step.absorb(everything, move)
        step.send()
        whole = tree.Assembly(d)
        for bucket, after in step.arrivals():
            whole.add(bucket, (after, algorithm.model(after)))
        after, y = whole.whole
        pushed = step.sent.whole.compared
        pushed = now.state.x if pushed is None else pushed
        return Moment(t, after, y, kept, step.memory, pushed, step.weights)

    def buckets(self, d: int) -> list[slice]:
        """The columns that travel together; all of them, where the method looks at all at once."""
        return column_blocks(d, BUCKET if self.setup.algorithm.elementwise else d)

    def round(
        self, t: int, state: State, memory: Memory | None, last: bool, in_place: bool
    ) -> MessageRound | SumRound | None:
        """The exchange of step t, if there is one.

        `last`: whether the tensors of the memory may be written over; `in_place`: what is sent.
        """
        number = self.setup.exchange_of(t)
        if number == 0 or not any(self.vectors(state.x.shape[1])[:2]):
            return None
        if self._by_all_reduce(number) and state.x.dtype in (torch.float32, torch.float64):
            return SumRound(self, t, number, state, memory, in_place)
        return MessageRound(self, t, number, state, memory, last, in_place)

    def average(self, value: Tensor) -> Tensor:
        """The mean over all nodes, at every node, by a ring of messages."""
        total = value.clone()
        with self.ledger.spend("transfer", "waiting"):
            self.peers.all_reduce(total)
        self.ledger.bytes += ring_bytes(self.peers.n, self.peers.rank, total.nbytes)
        return total / self.peers.n

    def weights(self, number: int, memory: Memory | None) -> Tensor:
        """Line 3: what this node gives, (K,) float64 in the order of the receivers."""
        n, node = self.topology.n, self.peers.rank
        senders, receivers = self.topology.edges(number)
        d2 = {} if memory is None else memory.d2
        others = sorted(d2)
        view = View(
            n,
            senders,
            receivers,
            torch.full((len(others),), node),
            torch.tensor(others, dtype=torch.int64),
            torch.tensor([d2[j] for j in others], dtype=torch.float64),
        )
        return self.weighting.along(view, self.setup.wire)[senders == node]

    # ----------------------------------------------------------------- on disk

    def saved(self, memory: Memory | None) -> tuple[dict[str, Tensor], Any]:
        """A memory as named tensors and JSON."""
        return tree.saved(memory)

    def restored(self, tensors: Mapping[str, Tensor], notes: Any) -> Memory | None:
        """The memory that was saved."""
        found: Memory | None = tree.restored(Memory({}, {}), tensors, notes)
        if found is None:
            return None
        return found._replace(heard={j: Heard(*entry) for j, entry in found.heard.items()})


class NodeStep:
    """One step of a method at this node: columns go through it as they become known.

    In order: `begin`; for all columns `direct`, where the direction is not the gradient, and
    `absorb`; `send`; `arrivals`.

    Args:
        exchange: the engine.
        d: how many columns there are.
        again: whether it serves one step after the other, with the same memory for what is sent.
    """

    def __init__(self, exchange: Exchange, d: int, again: bool = False) -> None:
        self.exchange, self.algorithm, self.d = exchange, exchange.setup.algorithm, d
        self.sent, self._carried, self._moves = (tree.Assembly(d, copies=again) for _ in range(3))
        # what `keep_received` holds afterwards is what arrived, so x itself may be sent
        self._plain = self.algorithm.receive is protocol.keep_received
        self._sends_x = again and self._plain and self.algorithm.send is protocol.push_moved

    def begin(self, step: Step, state: State, memory: Memory | None, last: bool) -> None:
        """See `Exchange.round`, which begins with the first bucket: a gradient may be given up."""
        self.step, self.state, self.memory, self._last = step, state, memory, last
        self.round: MessageRound | SumRound | None = None
        self.local = self.exchange.setup.exchange_of(step.t) == 0  #: W = I
        self.buckets = self.exchange.buckets(self.d)
        self._unsent = list(self.buckets)
        if self._sends_x:
            self.sent.whole = Sent(push=(state.x,))

    @property
    def weights(self) -> Tensor:
        """(K,) float64, what this node gives; none, where nothing is pushed."""
        if self.round is not None:
            return self.round.weights
        return torch.ones(int(self.local), dtype=torch.float64)

    @property
    def carried(self) -> Any:
        """What the method carries from the direction to what it makes of what arrives."""
        return () if self._carried.whole is None else self._carried.whole

    def direct(self, some: slice, gradient: Gradient) -> Tensor:
        """What the optimizer is given for these columns."""
        state, step = self._of(some, self.state, self.step)
        direction, carried = self.algorithm.direction(state, gradient, step)
        self._carried.add(some, carried)
        return direction

    def absorb(self, some: slice, move: Tensor) -> None:
        """Line 2: what the optimizer has made of these columns, and what is to be sent of it."""
        if self._sends_x:  # as `push_moved`, in place
            self.state.x[:, some].add_(move)
            return
        state, carried, step = self._of(some, self.state, self.carried, self.step)
        self.sent.add(some, self.algorithm.send(state, carried, move, step))
        if not self._plain:
            self._moves.add(some, move)

    def send(
        self, known: int = 0, check: Callable[[slice, Sent], None] = lambda bucket, sent: None
    ) -> None:
        """Buckets leave from the last to the first, once all their columns from `known` on are.

        None of them leaves before all of them are checked.
        """
        leaving = [bucket for bucket in reversed(self._unsent) if bucket.start >= known]
        of_each = [(bucket, *self._of(bucket, self.sent.whole)) for bucket in leaving]
        for bucket, sent in of_each:
            check(bucket, sent)
        if leaving and len(self._unsent) == len(self.buckets):
            now = self.step.t, self.state, self.memory, self._last
            self.round = self.exchange.round(*now, in_place=self._sends_x)
        for bucket, sent in of_each:
            self._unsent.pop()
            if self.round is not None:
                self.round.send(bucket, sent)

    @property
    def unsent(self) -> int:
        """Where the next bucket to leave begins; -1 if all have left."""
        return self._unsent[-1].start if self._unsent else -1

    def arrivals(self) -> Iterator[tuple[slice, State]]:
        """Line 7: the node's state after the step, bucket by bucket from the last to the first."""
        for bucket in reversed(self.buckets):
            trees = self.state, self.carried, self._moves.whole, self.step, self.sent.whole
            state, carried, move, step, sent = self._of(bucket, *trees)
            got = Got(state.a, *sent) if self.round is None else self.round.arrive(bucket)
            if not self.local:
                got = got._replace(mean=tuple(map(self.exchange.average, got.mean)))
            yield bucket, self.algorithm.receive(state, carried, move, got, step)
        if self.round is not None:
            self.memory = self.round.finish()

    def _of(self, some: slice, *trees: Any) -> Any:
        return tree.columns(trees, self.d, some)
