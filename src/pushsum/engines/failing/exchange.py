"""A plan for the nodes of one network, and one exchange under it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pushsum.engines.engine import Moment, Setup, late_mass
from pushsum.engines.failing.links import Links
from pushsum.engines.failing.mail import Mail, Post, Room
from pushsum.engines.failing.parcels import MOST_PARCELS, Outbox, Parcels
from pushsum.engines.failing.roster import Desk
from pushsum.engines.failing.standing import (
    NOT_SENT,
    Flight,
    Messages,
    Standing,
    UnderWay,
    optimizer_rows,
    rows,
    rows_of,
)
from pushsum.engines.mixing import Graph
from pushsum.faults import CRASHED, HERE
from pushsum.protocol import State, what_is_sent

MOST_DRAWN = 64  #: nodes whose links are counted one by one


def check(setup: Setup) -> None:
    """Refuse methods that cannot run under the plan."""
    algorithm, plan, n = setup.algorithm, setup.faults, setup.topology.n
    assert plan is not None
    plan.check(n)
    push, pull, mean = what_is_sent(algorithm)
    if mean:
        raise ValueError(
            f"{algorithm.name} averages over all nodes, and stops when one is missing: it has no "
            "fault plan; compare with a method that sends along edges, such as SGP"
        )
    if algorithm.static:
        raise ValueError(
            f"{algorithm.name} is for a graph that never changes, and messages that are lost "
            "change it: take another method, such as S-ADDOPT"
        )
    if push + pull > 1 and plan.loses_nodes and plan.reset is None:
        raise ValueError(
            f"{algorithm.name} tracks gradients, and {plan} loses nodes: without a reset "
            "the nodes would agree on a wrong point, with gradients of the lost in it: give reset=1"
        )
    if plan.accounting == "outbox" and n > MOST_PARCELS:
        raise ValueError(
            f"accounting = outbox: parcels for every link are for up to {MOST_PARCELS} nodes, not "
            f"{n}: take accounting='keep'"
        )
    if setup.start:
        raise ValueError("published.restart has no fault plan: leave one of them out")


class Faults:
    """A plan, for the nodes of one network."""

    def __init__(self, setup: Setup, graph: Callable[[int], Graph]) -> None:
        assert setup.faults is not None
        self.setup, self.plan, self.graph = setup, setup.faults, graph
        self.n = setup.topology.n
        push, pull, _ = what_is_sent(setup.algorithm)
        self.mass = pull == 0  #: whether x is pushed, and has to be accounted for
        self.tracks = push + pull > 1
        self.by_parcel = push > 0 and self.plan.accounting == "outbox"
        self.depth = self.plan.longest + 1 if self.plan.waits else 0
        self.room = Room()

    # ----------------------------------------------------------------- who is there

    def begin(self, now: Moment) -> Moment:
        """Before step 1; who joins later has nothing yet."""
        n, state = self.n, now.state
        alive = self.plan.status(1, n) < CRASHED
        zeros = torch.zeros(self.depth, n, dtype=torch.float64)
        links = torch.zeros([n if n <= MOST_DRAWN else 0] * 2, dtype=torch.int64)
        standing = Standing(
            buffers=None,
            alive=alive,
            awake=alive,
            fired=torch.zeros(n, dtype=torch.int64),
            due=0,
            ghosts=now.y[~alive],
            mail=Mail(zeros, zeros.clone()),
            parcels=Parcels.none(n, self.plan.longest + 1) if self.by_parcel else None,
            flights=(),
            messages=Messages(lost_on=links),
        )
        state = state._replace(
            x=rows(alive, state.x, torch.zeros_like(state.x)),
            a=rows(alive, state.a, torch.zeros_like(state.a)),
        )
        return now._replace(state=state, memory=standing)

    def attend(self, now: Moment, exchange: int) -> Moment:
        """The nodes that crash, leave and join before an exchange; and what follows from that."""
        standing: Standing = now.memory
        if self.plan.roster:
            status = self.plan.status(exchange, self.n)
            if bool((status >= CRASHED).all()):
                raise ValueError(f"{self.plan}: at step {exchange} no node is left")
            gone = standing.alive & (status >= CRASHED)
            back = ~standing.alive & (status < CRASHED)
            if bool(gone.any() | back.any()):
                desk = Desk(self, now, exchange)
                for node in gone.nonzero().flatten().tolist():
                    (desk.crash if int(status[node]) == CRASHED else desk.leave)(node)
                for node in back.nonzero().flatten().tolist():
                    desk.join(node)
                now = desk.done()
            if now.memory.due and exchange >= now.memory.due:
                now = self._reset(now)
        awake = self._awake(now.memory, exchange)
        return now._replace(memory=now.memory._replace(awake=awake))

    def _awake(self, standing: Standing, exchange: int) -> Tensor:
        """(n,) bool: who computes and sends; those who have just come begin one exchange later."""
        if not self.plan.roster and not self.plan.naps:
            return standing.alive
        status, asleep = self.plan.status(exchange, self.n), self.plan.asleep(exchange, self.n)
        return standing.alive & (status == HERE) & ~asleep & (standing.fired != exchange)

    def _reset(self, now: Moment) -> Moment:
        """Trackers start anew, at all nodes at once; what is under way of the old ones is void."""
        standing: Standing = now.memory
        standing = standing.changed(
            lambda a: a, lambda k, v: torch.zeros_like(v) if self.is_tracker(k) else v
        )
        state = now.state._replace(kept=self.started(now.y))
        return now._replace(state=state, memory=standing._replace(due=0))

    def started(self, y: Tensor) -> Any:
        """What the method keeps at nodes that begin with a model."""
        return self.setup.algorithm.start(
            y, self.setup.step(self.setup.start, torch.arange(self.n))
        )

    def is_tracker(self, k: int) -> bool:
        """Whether the k-th of the pushed vectors is not x."""
        return k > 0 or not self.mass

    def seen(self, now: Moment) -> State:
        """The state that a method is given: nodes that are away stay where they were last."""
        state, alive = now.state, now.memory.alive
        if bool(alive.all()):
            return state
        ones = torch.ones_like(state.a)
        return state._replace(x=rows(alive, state.x, now.y), a=rows(alive, state.a, ones))

    def moved(self, now: Moment, after: State, y: Tensor, kept: Any) -> tuple[State, Tensor, Any]:
        """State, model and optimizer after a step: nodes that sleep make none.

        QGM's momentum is how far y went. With a small a that is far, and the momentum would feed on
        itself: a held node has none.
        """
        awake, setup = now.memory.awake, self.setup
        if setup.algorithm.plain_sgd:
            after = after._replace(kept=rows_of(~self.held(now), after.kept, self.started(y)))
        if bool(awake.all()):
            return after, y, kept
        after, y = rows_of(awake, (after, y), (now.state, now.y))
        return after, y, optimizer_rows(setup.optimizer, awake, kept, now.optimizer)

    # ----------------------------------------------------------------- what there is

    def under_way(self, now: Moment) -> UnderWay:
        """The mass of x and a that is in no node's state."""
        x, a = late_mass(self.setup.algorithm, now.state)
        if self.mass:
            for store in now.memory.stores:
                x, a = x + store.under_way_x, a + store.under_way_a
        return UnderWay(x, a)

    def mass_of_a(self, standing: Standing, state: State) -> float:
        """At the nodes and under way."""
        return float(state.a.sum()) + late_mass(self.setup.algorithm, state)[1] + standing.a

    def held(self, now: Moment) -> Tensor:
        """(n,) bool: who has too little to give; see the hold rule."""
        alive: Tensor = now.memory.alive
        if not self.mass:  # a stays 1
            return torch.zeros_like(alive)
        return torch.logical_and(alive, self._share_of_a(now) < self.plan.hold)

    def _share_of_a(self, now: Moment) -> Tensor:
        """(n,) a, in parts of what a living node has on average."""
        living = max(1, int(now.memory.alive.sum()))
        return now.state.a.cpu() / (self.mass_of_a(now.memory, now.state) / living)

    def pace(self, now: Moment, number: int) -> Tensor | None:
        """(n, 1), what moves are multiplied by; None: by 1.

        By the steps that a node's clock has advanced. A held node's are made smaller, so that its y
        moves as if it had what others have: its a is small for as long as it hears nobody, and
        steps of lr / a would lead its y away for all that time.
        """
        found = torch.ones(self.n, dtype=torch.float64)
        if number and self.plan.catch_up > 1:
            found = (number - now.memory.fired).clamp(min=1, max=self.plan.catch_up).double()
        held = self.held(now)
        if bool(held.any()):
            found = torch.where(held, found * self._share_of_a(now), found)
        return None if bool((found == 1).all()) else found[:, None]

    def links(self, now: Moment, number: int, graph: Graph) -> Links:
        """What happens along the edges of an exchange."""
        there, awake = now.memory.alive, now.memory.awake
        if self.plan.roster:
            there = there & (self.plan.status(number, self.n) == HERE)
        gives = awake & ~self.held(now)
        places, senders, receivers = graph.messages
        open = torch.zeros_like(graph.loops)
        open[places] = gives[senders] & there[receivers]
        fate = torch.zeros_like(graph.senders)
        fate[places] = self.plan.fates(number, senders, receivers)
        return Links(self.plan, number, graph, there, awake, open, fate)


class Failing:
    """One exchange under a plan."""

    def __init__(self, faults: Faults, now: Moment, number: int, graph: Graph) -> None:
        self.faults, self.now, self.number, self.graph = faults, now, number, graph
        self.standing: Standing = now.memory
        self.links = links = faults.links(now, number, graph)
        self.flights: tuple[Flight, ...] = ()  #: that are still under way
        width = now.state.x.shape[1]
        self.mail = Post(links, self.standing.mail, faults.depth, width, faults.room)
        self.box = None
        if faults.by_parcel:
            assert self.standing.parcels is not None
            self.box = Outbox(links, self.standing.parcels, width)

    @cached_property
    def tally(self) -> Messages:
        """What happened to messages so far."""
        if self.box is not None:
            return self.standing.messages.and_these(*self.box.copies_sent)
        places, senders, receivers = self.graph.messages
        fates = torch.where(self.links.open[places], self.links.fate[places], NOT_SENT)
        return self.standing.messages.and_these(senders, receivers, fates)

    @property
    def sent(self) -> int:
        """How many messages are sent in this exchange."""
        return self.tally.sent - self.standing.messages.sent

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of what is given, and the scalars a that follow from them."""
        keeps = self.faults.plan.accounting == "keep"  # with others a lost share is given, too
        given = torch.where(self.links.through if keeps else self.links.open, weights, 0.0)
        places, senders, _ = self.graph.messages
        total = torch.zeros(self.graph.n, dtype=torch.float64)
        given[self.graph.loops] = 1 - total.index_add_(0, senders, given[places])
        a = self.now.state.a
        return given, self._frozen((self.box or self.mail).scalars(given, a), a)

    def push(self, k: int, value: Tensor, sent: Tensor, some: slice) -> Tensor:
        """What the nodes hold of the k-th pushed value, of which `sent` is on the wire."""
        return self._held((self.box or self.mail).vector(k, sent, some, value.dtype), value, sent)

    def pull(self, k: int, value: Tensor, sent: Tensor, some: slice) -> Tensor:
        """The mean of what the nodes heard, itself among them."""
        return self._held(self.mail.mean(k, sent, some, value.dtype), value, sent)

    def _held(self, total: Tensor, value: Tensor, sent: Tensor) -> Tensor:
        """What rounding took from what is sent stays with its node."""
        if sent.dtype != value.dtype:
            total = total + (value.double() - sent.double())
        return self._frozen(total.to(value.dtype, copy=True), value)

    def _frozen(self, new: Tensor, old: Tensor) -> Tensor:
        return new if self.links.everybody else rows(self.links.awake, new, old)

    # ----------------------------------------------------------------- what weightings compare

    def compared(self, sent: Tensor, last: Tensor) -> Tensor:
        """What each node sent last."""
        return self._frozen(sent, last)

    def arriving(self, answered: Tensor) -> list[Flight]:
        """Messages that arrive now, the latest last; of what is sent now only where `answered`."""
        if self.box is not None and self.faults.mass:
            i, j = self.box.applies.nonzero().T
            since = self.box.after.since[i, j]
            return [
                Flight(self.number, step, i[since == step], j[since == step])
                for step in since.unique().tolist()
            ]
        through = self.links.through & answered
        senders, receivers = self.graph.senders[through], self.graph.receivers[through]
        late = self.links.fate[through]
        flights = [*self.standing.flights]
        for k in late.unique().tolist():
            here = late == k
            flights.append(Flight(self.number + k, self.number, senders[here], receivers[here]))
        self.flights = tuple(flight for flight in flights if flight.due > self.number)
        return [flight for flight in flights if flight.due <= self.number]

    @property
    def needed(self) -> set[int]:
        """The exchanges of which what was sent must be kept: it is under way, or is the last."""
        sent = {flight.sent for flight in self.flights}
        if self.box is not None:
            sent |= set(self.box.after.since[self.box.after.open].tolist())
        return sent | ({self.number} if self.faults.plan.naps or self.faults.plan.roster else set())

    # ----------------------------------------------------------------- after it

    def finish(self, buffers: Any) -> Standing:
        """What the exchange leaves for the next one."""
        return self.standing._replace(
            buffers=buffers,
            fired=torch.where(self.links.awake, self.number, self.standing.fired),
            mail=self.mail.finished(),
            parcels=None if self.box is None else self.box.finished(),
            flights=self.flights,
            messages=self.tally,
        )
