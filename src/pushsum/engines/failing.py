"""The simulator under a plan of faults: who is there, what gets through, and what is under way.

With `keep`, a sender knows at once what did not get through, and keeps it: the weight of a lost
message moves to the sender's diagonal, so that columns still sum to 1. Late messages are sums by
receiver and time of arrival, (D + 1, n, d), never by edge; what waits for a sleeping node is among
them. With `outbox` every link has parcels, which are sent again until they are acknowledged.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushsum.engines import tree
from pushsum.engines.arithmetic import BLOCK
from pushsum.engines.engine import Moment, Setup
from pushsum.engines.mixing import FEW_NODES, FEW_TURNS, Graph, mixer
from pushsum.faults import CRASHED, HERE, LOST
from pushsum.protocol import State, what_is_sent

MOST_PARCELS = 64  #: nodes, of which every two may have a link with parcels of its own


class Mail(NamedTuple):
    """What is under way: [k] arrives in k steps, [0] waits for a sleeping receiver."""

    a: Tensor  #: (D + 1, n) float64
    heard: Tensor  #: (D + 1, n) float64, how many messages
    push: tuple[Tensor, ...] = ()  #: (D + 1, n, d) each; none before the first exchange
    pull: tuple[Tensor, ...] = ()


class Parcels(NamedTuple):
    """The outboxes; [i, j] is the link i -> j."""

    sealed: Tensor  #: (n, n) int64, the number of the last parcel
    applied: Tensor  #: (n, n) the last one that the receiver has applied
    acked: Tensor  #: (n, n) the last one of which the sender knows that
    since: Tensor  #: (n, n) the exchange in which the last one was sealed
    copies: Tensor  #: (D + 1, n, n) numbers of parcels under way; [0] wait for a sleeping receiver
    answers: Tensor  #: (D + 1, n, n) numbers of acknowledgements under way
    waiting_a: Tensor  #: (n, n) float64, what is to be sealed next
    parcel_a: Tensor  #: (n, n) float64, what was sealed last
    waiting: tuple[Tensor, ...] = ()  #: (n, n, d) each
    parcel: tuple[Tensor, ...] = ()

    @property
    def open(self) -> Tensor:
        """(n, n) bool: sealed, and not yet applied."""
        return self.sealed > self.applied


class Flight(NamedTuple):
    """Messages under way, of those whose values weightings compare."""

    due: int  #: the exchange in which they arrive
    sent: int  #: the exchange in which they were sent
    senders: Tensor
    receivers: Tensor


class Standing(NamedTuple):
    """What a run under a plan carries from step to step, besides the nodes' state."""

    buffers: Any  #: what weightings remember
    alive: Tensor  #: (n,) bool
    fired: Tensor  #: (n,) int64, the last exchange in which each node took part
    due: int  #: the exchange with which trackers start anew; 0: none
    ghosts: Tensor  #: (n - living, d) the last y of nodes that are away
    mail: Mail
    parcels: Parcels | None
    flights: tuple[Flight, ...]
    tally: tuple[int, int, int, int]  #: messages sent, lost and late; nodes held, summed over steps


class UnderWay(NamedTuple):
    """What the nodes have sent, and nobody has received yet."""

    x: Tensor  #: (d,) float64
    a: float


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
        self.pushes, self.tracks = push > 0, push + pull > 1
        self.depth = self.plan.longest + 1 if self.plan.waits else 0

    # ----------------------------------------------------------------- who is there

    def begin(self, now: Moment) -> Moment:
        """Before step 1; who joins later has nothing yet."""
        n, depth = self.n, self.depth
        alive = self.plan.status(1, n) < CRASHED
        zeros = torch.zeros(depth, n, dtype=torch.float64)
        standing = Standing(
            buffers=None,
            alive=alive,
            fired=torch.zeros(n, dtype=torch.int64),
            due=0,
            ghosts=now.y[~alive],
            mail=Mail(zeros, zeros.clone()),
            parcels=self._no_parcels() if self.plan.accounting == "outbox" else None,
            flights=(),
            tally=(0, 0, 0, 0),
        )
        state = now.state._replace(
            x=_rows(alive, now.state.x, torch.zeros_like(now.state.x)),
            a=torch.where(alive.to(now.state.a.device), now.state.a, 0.0),
        )
        return now._replace(state=state, memory=standing)

    def _no_parcels(self) -> Parcels:
        n, depth = self.n, self.plan.longest + 1
        numbers = torch.zeros(n, n, dtype=torch.int64)
        copies = torch.zeros(depth, n, n, dtype=torch.int64)
        zeros = numbers.clone
        return Parcels(
            sealed=zeros(),
            applied=zeros(),
            acked=zeros(),
            since=zeros(),
            copies=copies,
            answers=copies.clone(),
            waiting_a=numbers.double(),
            parcel_a=numbers.double(),
        )

    def attend(self, now: Moment, exchange: int) -> Moment:
        """The nodes that crash, leave and join before an exchange; and what follows from that."""
        standing: Standing = now.memory
        if not self.plan.roster:
            return now
        status = self.plan.status(exchange, self.n)
        gone = standing.alive & (status >= CRASHED)
        back = ~standing.alive & (status < CRASHED)
        if bool(gone.any() | back.any()):
            desk = _Desk(self, now, exchange)
            for node in gone.nonzero().flatten().tolist():
                if int(status[node]) == CRASHED:
                    desk.crash(node)
                else:
                    desk.leave(node)
            for node in back.nonzero().flatten().tolist():
                desk.join(node)
            now = desk.done()
        if now.memory.due and exchange >= now.memory.due:
            now = self._reset(now)
        return now

    def _reset(self, now: Moment) -> Moment:
        """Trackers start anew, at all nodes at once; what is under way of the old ones is void."""
        standing: Standing = now.memory
        x, step = now.state.x, self.setup.step(self.setup.start, torch.arange(self.n))
        state = now.state._replace(kept=self.setup.algorithm.start(x, step))

        def void(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(
                torch.zeros_like(value) if self.is_tracker(k) else value
                for k, value in enumerate(values)
            )

        mail, parcels = standing.mail, standing.parcels
        mail = mail._replace(push=void(mail.push))
        if parcels is not None:
            parcels = parcels._replace(waiting=void(parcels.waiting), parcel=void(parcels.parcel))
        return now._replace(
            state=state, memory=standing._replace(due=0, mail=mail, parcels=parcels)
        )

    def is_tracker(self, k: int) -> bool:
        """Whether the k-th of the pushed vectors is not x."""
        return k > 0 or not self.mass

    def awake(self, standing: Standing, exchange: int) -> Tensor:
        """(n,) bool: who computes and sends; those who have just come begin one exchange later."""
        status, asleep = self.plan.status(exchange, self.n), self.plan.asleep(exchange, self.n)
        return standing.alive & (status == HERE) & ~asleep & (standing.fired != exchange)

    # ----------------------------------------------------------------- what there is

    def under_way(self, now: Moment) -> UnderWay:
        """The mass of x and a that is in no node's state."""
        standing: Standing = now.memory
        mail, parcels = standing.mail, standing.parcels
        x = torch.zeros(now.state.x.shape[1], dtype=torch.float64, device=now.state.x.device)
        a = 0.0
        if not self.mass:
            return UnderWay(x, a)
        a += float(mail.a.sum())
        if mail.push:
            x += mail.push[0].sum((0, 1), dtype=torch.float64)
        if parcels is not None:
            still = parcels.open
            a += float(parcels.waiting_a.sum() + parcels.parcel_a[still].sum())
            if parcels.waiting:
                x += parcels.waiting[0].sum((0, 1), dtype=torch.float64)
                x += parcels.parcel[0][still].sum(0, dtype=torch.float64)
        return UnderWay(x, a)

    def held(self, now: Moment) -> Tensor:
        """(n,) bool: who has too little to give; see the hold rule."""
        standing: Standing = now.memory
        a = now.state.a.cpu()
        if self.plan.hold == 0:
            return torch.zeros(self.n, dtype=torch.bool)
        mean = self.mass_of_a(standing, a) / max(1, int(standing.alive.sum()))
        return standing.alive & (a < self.plan.hold * mean)

    def mass_of_a(self, standing: Standing, a: Tensor) -> float:
        total = float(a.sum() + standing.mail.a.sum())
        if standing.parcels is not None:
            parcels = standing.parcels
            total += float(parcels.waiting_a.sum() + parcels.parcel_a[parcels.open].sum())
        return total


def _rows(some: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of the one or the other."""
    mask = some.to(new.device).reshape(-1, *[1] * (new.ndim - 1))
    return torch.where(mask, new, old)


def rows_of(some: Tensor, new: Any, old: Any) -> Any:
    """Trees of tensors with a row per node: rows of the one where `some`, else of the other."""
    others = iter(tree.leaves(old))
    if len(tree.leaves(new)) != len(tree.leaves(old)):
        return new  # an optimizer that had nothing to remember yet

    def pick(v: Tensor) -> Tensor:
        other = next(others)
        return _rows(some, v, other) if v.ndim and len(v) == len(some) else v

    return tree.mapped(pick, new)


class _Desk:
    """Where nodes come and go, one after the other; x and a are copies that may be changed."""

    def __init__(self, faults: Faults, now: Moment, exchange: int) -> None:
        self.faults, self.now, self.exchange = faults, now, exchange
        self.standing: Standing = now.memory
        self.x, self.a, self.y = now.state.x.clone(), now.state.a.clone(), now.y.clone()
        self.alive = self.standing.alive.clone()
        self.fired = self.standing.fired.clone()
        self.mail = tree.mapped(torch.clone, self.standing.mail)
        self.parcels = tree.mapped(torch.clone, self.standing.parcels)
        self.fresh = torch.zeros(faults.n, dtype=torch.bool)  #: those that come
        self.moved = torch.zeros(faults.n, dtype=torch.bool)  #: those that were given something
        self.fewer = self.lost = False

    def crash(self, node: int) -> None:
        """What the node has, and what is under way from and to it by parcel or late, is lost."""
        self._reclaim(node)
        self._clear(node)
        self.alive[node], self.fewer, self.lost = False, True, True

    def leave(self, node: int) -> None:
        """Everything goes to a receiver; without one that is there, it stays for another step."""
        if self.faults.mass:
            graph = self.faults.graph(self.exchange)
            there = graph.receivers[(graph.senders == node) & (graph.receivers != node)]
            there = there[self._reachable()[there]]
            if len(there) == 0:
                return
            heir = int(there[0])
            self._reclaim(node)
            self.x[heir] += self.x[node]
            self.a[heir] += self.a[node]
            for part in (self.mail.a, *self.mail.push[:1]):
                part[:, heir] += part[:, node]
            if self.parcels is not None:
                self._inherit(node, heir)
            self.moved[heir] = True
        self._clear(node)
        self.alive[node], self.fewer = False, True

    def join(self, node: int) -> None:
        """An in-neighbour hands over half of what it has; without one, the node has to wait."""
        graph = self.faults.graph(self.exchange)
        there = graph.senders[(graph.receivers == node) & (graph.senders != node)]
        there = there[self._reachable()[there]]
        if len(there) == 0:
            return
        donor = int(there[self.a[there].argmax()])
        if self.faults.mass:
            self.x[donor] *= 0.5
            self.a[donor] *= 0.5
        self.x[node], self.a[node], self.y[node] = self.x[donor], self.a[donor], self.y[donor]
        self.alive[node] = self.fresh[node] = True
        self.fired[node] = self.exchange

    def done(self) -> Moment:
        """The moment with which the run goes on."""
        faults, now, standing = self.faults, self.now, self.standing
        if not bool(self.alive.any()):
            raise ValueError(f"{faults.plan}: at step {self.exchange} no node is left")
        setup, step = faults.setup, faults.setup.step(faults.setup.start, torch.arange(faults.n))
        kept = rows_of(~self.fresh, now.state.kept, setup.algorithm.start(self.x, step))
        nothing = tree.mapped(torch.zeros_like, now.optimizer)  # momentum is not mass
        optimizer = rows_of(~self.fresh, now.optimizer, nothing)
        due = standing.due
        if self.fewer and faults.tracks and faults.plan.reset is not None:
            due = self.exchange + faults.plan.reset - 1
        standing = standing._replace(
            alive=self.alive, fired=self.fired, due=due, mail=self.mail, parcels=self.parcels
        )
        if self.lost and faults.mass:
            standing = self._rescaled(standing)
        state = State(self.x, self.a, kept)
        y = self.y
        moved = self.moved & self.alive
        if bool(moved.any()):
            y = _rows(moved, setup.algorithm.model(state), y)
        standing = standing._replace(ghosts=y[~self.alive])
        return now._replace(state=state, y=y, optimizer=optimizer, memory=standing)

    def _rescaled(self, standing: Standing) -> Standing:
        """Lost mass makes steps longer: x and a grow by the power of 2 that makes up for it."""
        mass = self.faults.mass_of_a(standing, self.a.cpu())
        ratio = int(self.alive.sum()) / mass if mass > 0 else 1.0
        factor = 1.0
        while ratio / factor > 2**0.5:
            factor *= 2
        if factor == 1.0:
            return standing

        def grown(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(
                v if self.faults.is_tracker(k) else v * factor for k, v in enumerate(values)
            )

        self.x, self.a = self.x * factor, self.a * factor
        mail, parcels, buffers = standing.mail, standing.parcels, standing.buffers
        mail = mail._replace(a=mail.a * factor, push=grown(mail.push))
        if parcels is not None:
            parcels = parcels._replace(
                waiting_a=parcels.waiting_a * factor,
                parcel_a=parcels.parcel_a * factor,
                waiting=grown(parcels.waiting),
                parcel=grown(parcels.parcel),
            )
        if buffers is not None:
            buffers = buffers.scaled(factor, self.faults.setup.algorithm.weighting.corrected)
        return standing._replace(mail=mail, parcels=parcels, buffers=buffers)

    def _reachable(self) -> Tensor:
        status = self.faults.plan.status(self.exchange, self.faults.n)
        return torch.logical_and(self.alive, status == HERE)

    def _reclaim(self, node: int) -> None:
        """Senders take back what the node has not applied of their parcels."""
        if self.parcels is None:
            return
        p, still = self.parcels, self.parcels.open[:, node]
        if not self.faults.mass:
            return
        self.a += p.waiting_a[:, node] + torch.where(still, p.parcel_a[:, node], 0.0)
        if p.waiting:
            some = still.to(self.x.device)[:, None]
            self.x += p.waiting[0][:, node] + torch.where(some, p.parcel[0][:, node], 0.0)
            self.moved |= self.alive

    def _inherit(self, node: int, heir: int) -> None:
        p, still = self.parcels, self.parcels.open[node]
        self.a[heir] += p.waiting_a[node].sum() + p.parcel_a[node][still].sum()
        if p.waiting:
            self.x[heir] += p.waiting[0][node].sum(0) + p.parcel[0][node][still].sum(0)

    def _clear(self, node: int) -> None:
        self.x[node], self.a[node] = 0.0, 0.0
        for part in (self.mail.a, self.mail.heard, *self.mail.push, *self.mail.pull):
            part[:, node] = 0
        if self.parcels is not None:
            p = self.parcels
            for part in (*p[:4], p.waiting_a, p.parcel_a, *p.waiting, *p.parcel):
                part[node], part[:, node] = 0, 0
            for part in (p.copies, p.answers):
                part[:, node], part[:, :, node] = 0, 0


# --------------------------------------------------------------------------- one exchange


class Failing:
    """One exchange under a plan."""

    def __init__(self, faults: Faults, now: Moment, number: int, graph: Graph) -> None:
        self.faults, self.now, self.number, self.graph = faults, now, number, graph
        self.standing: Standing = now.memory
        plan, n, standing = faults.plan, faults.n, self.standing
        there = standing.alive & (plan.status(number, n) == HERE)
        self.there, self.awake = there, faults.awake(standing, number)
        self.held = faults.held(now) & self.awake
        gives = self.awake & ~self.held
        senders, receivers = graph.senders, graph.receivers
        self.loops = senders == receivers
        self.open = ~self.loops & gives[senders] & there[receivers]
        self.fate = plan.fates(number, senders, receivers)
        self.through = self.open & (self.fate != LOST)
        self.count = int(self.open.sum())
        lost, late = (
            int((self.open & (self.fate == LOST)).sum()),
            int((self.fate[self.through] > 0).sum()),
        )
        before = standing.tally
        self.tally = (
            before[0] + self.count,
            before[1] + lost,
            before[2] + late,
            before[3] + int(self.held.sum()),
        )
        self.mail = standing.mail
        self.rooms: dict[str, list[Tensor]] = {"a": [], "heard": [], "push": [], "pull": []}
        self.flights: tuple[Flight, ...] = ()  #: that are still under way
        self.everybody = bool(self.awake.all())
        by_parcel = standing.parcels is not None and faults.pushes
        self.box = _Outbox(self) if by_parcel else None
        self._spread: Callable[[Tensor], Tensor] | None = None
        self._pull_spread: Callable[[Tensor], Tensor] | None = None

    # ----------------------------------------------------------------- push

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of what gets through, and the scalars a that follow from them."""
        plan, loops = self.faults.plan, self.loops
        if self.box is not None or plan.accounting == "none":
            given = torch.where(self.open, weights, 0.0)  # a lost share is given, too
        else:
            given = torch.where(self.through, weights, 0.0)
        total = torch.zeros(self.graph.n, dtype=torch.float64)
        total.index_add_(0, self.graph.senders, given)
        rest = 1 - total[self.graph.senders]
        self.weights = torch.where(loops, rest, given)
        if plan.accounting == "none":
            given = torch.where(self.through, given, 0.0)
        stays = torch.where(self.awake[self.graph.senders], rest, 0.0)
        self.mixing = torch.where(loops, stays, given)
        a = self.now.state.a
        if self.box is not None:
            self.box.weigh(self.weights)
            return self.weights, self._frozen(self.box.scalars(a), a)
        arrived = self._with_mail(self._spread_of(a[:, None]), self.mail.a[:, :, None])
        return self.weights, self._frozen(self._kept(arrived, self.rooms["a"])[:, 0], a)

    def push(self, k: int, value: Tensor, sent: Tensor, some: slice) -> Tensor:
        """What the nodes hold of the k-th pushed value, of which `sent` is on the wire."""
        rest = value.double() - sent.double() if sent.dtype != value.dtype else None
        if self.box is not None:
            total = self.box.vector(k, sent, some, value.dtype)
        else:
            total = self._with_mail(self._spread_of(sent), self._mailed("push", k, some))
            total = self._kept(total, self.rooms["push"], k, value, some)
        if rest is not None:
            total = total + rest
        return self._frozen(total.to(value.dtype), value)

    def _frozen(self, new: Tensor, old: Tensor) -> Tensor:
        return new if self.everybody else _rows(self.awake, new, old)

    def _spread_of(self, sent: Tensor) -> Tensor:
        """(D + 1, n, k) float64: sums by arrival; (1, n, k) where nothing can be late or wait."""
        if self._spread is None:
            self._spread = spread(self.graph, self.mixing, self._slots(), max(1, self.faults.depth))
        return self._spread(sent)

    def _slots(self) -> Tensor:
        return torch.where(self.through, self.fate, 0)

    # ----------------------------------------------------------------- pull

    def pull(self, k: int, value: Tensor, sent: Tensor, some: slice) -> Tensor:
        """The mean of what the nodes heard, itself among them."""
        if self._pull_spread is None:
            ones = torch.where(self.through, 1.0, 0.0).double()
            deep = max(1, self.faults.depth)
            self._pull_spread = spread(self.graph, ones, self._slots(), deep)
            every = torch.ones(self.graph.n, 1, dtype=torch.float64)
            arrived = self._with_mail(self._pull_spread(every), self.mail.heard[:, :, None])
            self._heard = self._kept(arrived, self.rooms["heard"])
        total = self._with_mail(self._pull_spread(sent), self._mailed("pull", k, some))
        total = self._kept(total, self.rooms["pull"], k, value, some)
        heard = self._heard.to(value.device)
        return self._frozen(((total + value.double()) / (heard + 1)).to(value.dtype), value)

    # ----------------------------------------------------------------- mail

    def _mailed(self, kind: str, k: int, some: slice) -> Tensor | None:
        held = getattr(self.mail, kind)
        return held[k][..., some] if len(held) > k else None

    def _with_mail(self, sums: Tensor, mail: Tensor | None) -> Tensor:
        """What is sent now, added to what was under way, which is one step nearer."""
        if mail is not None and self.faults.depth:
            mail = mail.to(sums.device)
            sums[0] += mail[0]
            sums[: len(mail) - 1] += mail[1:]
        return sums

    def _kept(
        self,
        sums: Tensor,
        rooms: list[Tensor],
        k: int = 0,
        like: Tensor | None = None,
        some: slice = slice(None),
    ) -> Tensor:
        """What arrives; the rest stays under way."""
        arrived = sums[0]
        if not self.faults.depth:
            return arrived
        if len(rooms) <= k:
            width = sums.shape[2] if like is None else self.now.state.x.shape[1]
            rooms.append((sums if like is None else like).new_empty(*sums.shape[:2], width))
        room = rooms[k][..., some]
        room[0] = 0
        if not self.everybody:
            room[0] = torch.where(self.awake.to(sums.device)[:, None], 0.0, arrived)
        room[1:] = sums[1:]
        return arrived

    def _new_mail(self) -> Mail:
        before = self.mail
        a = self.rooms["a"][0][..., 0] if self.rooms["a"] else before.a
        heard = self.rooms["heard"][0][..., 0] if self.rooms["heard"] else before.heard
        return Mail(a, heard, tuple(self.rooms["push"]), tuple(self.rooms["pull"]))

    # ----------------------------------------------------------------- around it

    def scaled(self, move: Tensor) -> Tensor:
        """Moves, by the steps that the nodes' clocks have advanced."""
        most = self.faults.plan.catch_up
        if most == 1:
            return move
        steps = (self.number - self.standing.fired).clamp(min=1, max=most)
        return move * steps.to(move)[:, None]

    def compared(self, sent: Tensor, last: Tensor) -> Tensor:
        """What weightings compare: what each node sent last."""
        return sent if self.everybody else _rows(self.awake, sent, last)

    def messages(self, answered: Tensor | None) -> list[Flight]:
        """Those that arrive now, the latest last; of what is sent now only where `answered`."""
        if self.box is not None and self.faults.mass:
            return self.box.heard()
        flights = [*self.standing.flights, *self._sent(answered)]
        self.flights = tuple(flight for flight in flights if flight.due > self.number)
        return [flight for flight in flights if flight.due <= self.number]

    @property
    def needed(self) -> set[int]:
        """The exchanges of which what was sent must be kept: it is under way, or is the last."""
        sent = {flight.sent for flight in self.flights}
        if self.box is not None:
            sent |= set(self.box.after.since[self.box.after.open].tolist())
        return sent | ({self.number} if self.faults.plan.naps or self.faults.plan.roster else set())

    def _sent(self, answered: Tensor | None) -> list[Flight]:
        through = self.through if answered is None else self.through & answered
        late = self.fate[through]
        senders, receivers = self.graph.senders[through], self.graph.receivers[through]
        return [
            Flight(self.number + k, self.number, senders[late == k], receivers[late == k])
            for k in late.unique().tolist()
        ]

    def finish(self, buffers: Any) -> Standing:
        """What the exchange leaves for the next one."""
        standing = self.standing
        return standing._replace(
            buffers=buffers,
            fired=torch.where(self.awake, self.number, standing.fired),
            mail=self._new_mail(),
            parcels=standing.parcels if self.box is None else self.box.finished(),
            flights=self.flights,
            tally=self.tally,
        )


def spread(graph: Graph, weights: Tensor, slots: Tensor, depth: int) -> Callable[[Tensor], Tensor]:
    """value (n, k) -> (depth, n, k) float64, sums by receiver and time of arrival."""
    n = graph.n
    if depth == 1:
        mix = mixer(graph, weights)
        return lambda sent: mix(sent.double())[None]
    target = slots * n + graph.receivers
    if n <= FEW_NODES:
        W = torch.zeros(depth * n, n, dtype=torch.float64)
        W[target, graph.senders] = weights
        return lambda sent: torch.mm(W.to(sent.device), sent.double()).view(depth, n, -1)
    few = int(graph.in_degree.max()) <= FEW_TURNS
    turns = graph.turns if few else [torch.arange(len(weights))]
    sources = [(graph.senders[k], target[k], weights[k, None]) for k in turns]

    def add_up(sent: Tensor) -> Tensor:
        held = torch.zeros(depth * n, sent.shape[1], dtype=torch.float64, device=sent.device)
        for senders, places, weight in sources:
            if few:  # one message for each receiver at most
                held[places] += sent[senders].double().mul_(weight)
                continue
            for first in range(0, len(senders), BLOCK):
                part = slice(first, first + BLOCK)
                given = sent[senders[part]].double().mul_(weight[part])
                held.index_add_(0, places[part], given)
        return held.view(depth, n, -1)

    return add_up


# --------------------------------------------------------------------------- parcels


class _Outbox:
    """One exchange of parcels: shares are put in, some are sealed, sent, applied, acknowledged."""

    def __init__(self, failing: Failing) -> None:
        self.failing = failing
        parcels = failing.standing.parcels
        assert parcels is not None
        self.before: Parcels = parcels
        self.after: Parcels = parcels
        self.rooms: dict[str, list[Tensor]] = {"waiting": [], "parcel": []}

    def weigh(self, weights: Tensor) -> None:
        """What happens to the parcels of every link in this exchange."""
        f, p = self.failing, self.before
        graph, number, plan = f.graph, f.number, f.faults.plan
        n, senders, receivers = graph.n, graph.senders, graph.receivers
        away = ~f.loops
        self.share = torch.zeros(n, n, dtype=torch.float64)
        self.share[senders[away], receivers[away]] = torch.where(f.open, weights, 0.0)[away]
        self.stays = torch.where(f.awake, weights[f.loops], 0.0)
        filled = (p.waiting_a != 0) | (self.share != 0)
        self.seals = filled & (p.acked == p.sealed) & f.awake[:, None]
        sealed = p.sealed + self.seals
        # ------------------ copies, where the graph has the link, and nothing is acknowledged
        link = torch.zeros(n, n, dtype=torch.bool)
        link[senders[away], receivers[away]] = (f.awake[senders] & f.there[receivers])[away]
        sends = link & (sealed > p.acked)
        fate = torch.full((n, n), LOST)
        fate[senders, receivers] = f.fate
        copies = _shifted(p.copies)
        _post(copies, sends, fate, sealed)
        arrived = copies[0] * f.awake
        copies[0] = copies[0] * ~f.awake
        self.applies = arrived == p.applied + 1
        applied = p.applied + self.applies
        # ------------------ acknowledgements go back on the same connection
        answers = _shifted(p.answers)
        i, j = (arrived > 0).nonzero().T
        back = torch.full((n, n), LOST)
        back[i, j] = plan.fates(number, j, i, acks=True)
        _post(answers, arrived > 0, back, applied)
        reached = answers[0] * f.awake[:, None]
        answers[0] = answers[0] * ~f.awake[:, None]
        acked = torch.maximum(p.acked, reached)
        since = torch.where(self.seals, number, p.since)
        sent, lost = int(sends.sum()), int((sends & (fate == LOST)).sum())
        late = int((sends & (fate > 0)).sum())
        before = f.standing.tally
        f.tally = (before[0] + sent, before[1] + lost, before[2] + late, f.tally[3])
        f.count = sent
        self.after = p._replace(
            sealed=sealed, applied=applied, acked=acked, since=since, copies=copies, answers=answers
        )

    def scalars(self, a: Tensor) -> Tensor:
        """(n,) what the nodes hold of a."""
        given = self.share * a[:, None]
        waiting = self.before.waiting_a + given
        parcel = torch.where(self.seals, waiting, self.before.parcel_a)
        waiting = torch.where(self.seals, 0.0, waiting)
        self.after = self.after._replace(waiting_a=waiting, parcel_a=parcel)
        return self.stays * a + torch.where(self.applies, parcel, 0.0).sum(0)

    def vector(self, k: int, sent: Tensor, some: slice, kind: torch.dtype) -> Tensor:
        """(n, width) float64, what they hold of the k-th pushed value."""
        f, p = self.failing, self.before
        n, d = f.graph.n, f.now.state.x.shape[1]
        device = sent.device
        share, seals = self.share.to(device), self.seals.to(device)[..., None]
        waiting = share[..., None] * sent.double()[:, None]
        if len(p.waiting) > k:
            waiting += p.waiting[k][..., some]
            old = p.parcel[k][..., some].double()
        else:
            old = torch.zeros_like(waiting)
        parcel = torch.where(seals, waiting, old).to(kind)
        waiting = torch.where(seals, 0.0, waiting).to(kind)
        for name, part in (("waiting", waiting), ("parcel", parcel)):
            if len(self.rooms[name]) <= k:
                self.rooms[name].append(part.new_empty(n, n, d))
            self.rooms[name][k][..., some] = part
        applied = torch.where(self.applies.to(device)[..., None], parcel.double(), 0.0).sum(0)
        return self.stays.to(device)[:, None] * sent.double() + applied

    def finished(self) -> Parcels:
        """What it leaves for the next exchange."""
        waiting, parcel = (tuple(held) for held in self.rooms.values())
        return self.after._replace(waiting=waiting, parcel=parcel)

    def heard(self) -> list[Flight]:
        """Parcels that were applied, by the exchange in which they were sealed."""
        number = self.failing.number
        i, j = self.applies.nonzero().T
        since = self.after.since[i, j]
        return [
            Flight(number, step, i[since == step], j[since == step])
            for step in since.unique().tolist()
        ]


def _shifted(slots: Tensor) -> Tensor:
    """One step nearer; of a link's numbers the largest counts."""
    nearer = torch.zeros_like(slots)
    nearer[:-1] = slots[1:]
    nearer[0] = torch.maximum(nearer[0], slots[0])
    return nearer


def _post(slots: Tensor, some: Tensor, fate: Tensor, number: Tensor) -> None:
    for late in range(len(slots)):
        here = some & (fate == late)
        slots[late] = torch.where(here, torch.maximum(slots[late], number), slots[late])
