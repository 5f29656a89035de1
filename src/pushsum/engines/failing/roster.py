"""Nodes that crash, leave and join, between two exchanges."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pushsum.engines import tree
from pushsum.engines.engine import Moment
from pushsum.engines.failing.standing import Standing, optimizer_rows, rows, rows_of
from pushsum.faults import HERE
from pushsum.protocol import State

if TYPE_CHECKING:
    from pushsum.engines.failing.exchange import Faults


class Desk:
    """Where nodes come and go, one after the other, on a copy of what there is."""

    def __init__(self, faults: "Faults", now: Moment, exchange: int) -> None:
        self.faults, self.now, self.exchange = faults, now, exchange
        self.standing: Standing = tree.mapped(torch.clone, now.memory._replace(buffers=None))
        self.x, self.a, self.kept = tree.mapped(torch.clone, now.state)
        self.y, self.alive = now.y.clone(), self.standing.alive
        self.fresh = torch.zeros(faults.n, dtype=torch.bool)  #: those that come
        self.moved = torch.zeros(faults.n, dtype=torch.bool)  #: those that were given something
        self.fewer = self.lost = False

    def crash(self, node: int) -> None:
        """What the node has, and what is under way from and to it by parcel or late, is lost."""
        self._remove(node)
        self.lost = True

    def leave(self, node: int) -> None:
        """Everything goes to a receiver; without one that is there, it stays for another step."""
        if not self.faults.mass:
            self._remove(node)
            return
        graph = self.faults.graph(self.exchange)
        there = self._present(graph.receivers[(graph.senders == node) & (graph.receivers != node)])
        if len(there) == 0:
            return
        heir = int(there[0])
        self._reclaim(node)
        parts = [self.x, self.a]
        if self.faults.setup.algorithm.holds_mass:
            parts += tree.leaves(self.kept)
        for part in parts:
            part[heir] += part[node]
        self.standing.mail.inherit(node, heir)
        if self.standing.parcels is not None:
            self.a[heir] += self.standing.parcels.link_a[node].sum()
            if (x := self.standing.parcels.link_x) is not None:
                self.x[heir] += x[node].sum(0)
        self.moved[heir] = True
        self._remove(node)

    def join(self, node: int) -> None:
        """An in-neighbour hands over half of what it has; without one, the node has to wait."""
        graph = self.faults.graph(self.exchange)
        there = self._present(graph.senders[(graph.receivers == node) & (graph.senders != node)])
        if len(there) == 0:
            return
        donor = int(there[self.a[there].argmax()])
        if self.faults.mass:
            self.x[donor] *= 0.5
            self.a[donor] *= 0.5
        self.x[node], self.a[node], self.y[node] = self.x[donor], self.a[donor], self.y[donor]
        self.alive[node] = self.fresh[node] = True
        self.standing.fired[node] = self.exchange

    def done(self) -> Moment:
        """The moment with which the run goes on."""
        faults, setup, alive = self.faults, self.faults.setup, self.alive
        if not bool(alive.any()):
            raise ValueError(f"{faults.plan}: at step {self.exchange} no node is left")
        stays = alive & ~self.fresh
        state = State(self.x, self.a, rows_of(stays, self.kept, faults.started(self.y)))
        standing = self.standing._replace(buffers=self.now.memory.buffers)
        if self.fewer and faults.tracks and faults.plan.reset is not None:
            standing = standing._replace(due=self.exchange + faults.plan.reset - 1)
        if self.lost and faults.mass:
            state, standing = self._rescaled(state, standing)
        y, moved = self.y, self.moved & alive
        if bool(moved.any()):
            y = rows(moved, setup.algorithm.model(state), y)
        optimizer = optimizer_rows(setup.optimizer, ~self.fresh, self.now.optimizer)
        standing = standing._replace(ghosts=y[~alive])
        return self.now._replace(state=state, y=y, optimizer=optimizer, memory=standing)

    def _rescaled(self, state: State, standing: Standing) -> tuple[State, Standing]:
        """Steps are as long as nodes per mass: a power of 2 on x and a keeps that near 1."""
        algorithm, mass = self.faults.setup.algorithm, self.faults.mass_of_a(standing, state)
        factor = 2.0 ** round(math.log2(int(self.alive.sum()) / mass))
        if factor == 1.0:
            return state, standing
        kept = state.kept
        if algorithm.holds_mass:
            kept = tree.mapped(lambda part: part * factor, kept)
        standing = standing.changed(
            lambda a: a * factor, lambda k, v: v if self.faults.is_tracker(k) else v * factor
        )
        if standing.buffers is not None:
            buffers = standing.buffers.scaled(factor, algorithm.weighting.corrected)
            standing = standing._replace(buffers=buffers)
        return State(state.x * factor, state.a * factor, kept), standing

    def _present(self, nodes: Tensor) -> Tensor:
        status = self.faults.plan.status(self.exchange, self.faults.n)
        return nodes[self.alive[nodes] & (status[nodes] == HERE)]

    def _remove(self, node: int) -> None:
        self._reclaim(node)
        self.x[node], self.a[node] = 0.0, 0.0
        for store in self.standing.stores:
            store.clear(node)
        self.alive[node], self.fewer = False, True

    def _reclaim(self, node: int) -> None:
        """Senders take back what the node has not applied of their parcels."""
        parcels = self.standing.parcels
        if parcels is None or not self.faults.mass:
            return
        self.a += parcels.link_a[:, node]
        if (x := parcels.link_x) is not None:
            self.x += x[:, node]
            self.moved |= self.alive
        for part in (parcels.waiting_a, parcels.parcel_a, *parcels.waiting, *parcels.parcel):
            part[:, node] = 0
