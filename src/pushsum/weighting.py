"""How much each sender gives: weight matrices that satisfy Definition 1.

`W[j, i]` is what node i gives to node j. Definition 1 asks that every column sums to 1, that
`W[j, i] > 0` exactly where i sends to j, and that no positive entry lies below some delta > 0.

A node decides alone, from its out-degree and from its buffers (how far away the neighbours were
when it last heard them). A weighting is one rule that turns such a view into what is given along
every edge that leads away; the rest stays at home. A weighting of your own is any function

    weights(adjacency, squared_distances) -> W

of the (n, n) bool adjacency and the (n, n) float64 squared distances, with
`squared_distances[i, j] = ||x_ii^(buff) - x_ij^(buff)||^2`; see `own`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Literal, final, get_args

import torch
from torch import Tensor

from pushsum import checks, own_code
from pushsum.names import canonical, unknown
from pushsum.topology import Topology

#: What a rule must know of the buffers: nothing, those of the nodes it sends to, or all.
Sight = Literal["nothing", "neighbours", "buffers"]

Matrix = Callable[[Tensor, Tensor], Tensor]

MOST_DENSE = 2048  #: nodes for which a function of (n, n) matrices is asked
_MANY_GRAINS = 2.0**20  # weights from here on may be rounded down without falling below their floor
_GRAIN = 2.0**53  # weights are multiples of 2^-53, so that sums of them are exact in float64


@final
@dataclass(frozen=True, eq=False)
class View:
    """What the senders know when they divide what they give.

    Edges i -> j are sorted, and hold every self-loop. Buffers are those that count, sorted: holder
    i, the node l whose value it holds, and how far that is from what i itself sent. An engine that
    plays one node knows the buffers of that node alone.
    """

    n: int
    senders: Tensor  #: (E,)
    receivers: Tensor  #: (E,)
    holders: Tensor  #: (L,)
    others: Tensor  #: (L,)
    distances: Tensor  #: (L,) float64, squared

    @classmethod
    def of_edges(cls, n: int, senders: Tensor, receivers: Tensor) -> "View":
        """The view of nodes that have heard nobody."""
        nobody = torch.empty(0, dtype=torch.int64)
        return cls(n, senders, receivers, nobody, nobody, nobody.double())

    @cached_property
    def degree(self) -> Tensor:
        """(E,) float64 out-degree K_i of the sender, self-loop counted."""
        return torch.bincount(self.senders, minlength=self.n).double()[self.senders]

    @cached_property
    def away(self) -> Tensor:
        """(E,) bool, whether the edge leads to another node."""
        return self.senders != self.receivers

    @cached_property
    def heard(self) -> Tensor:
        """(E,) bool, whether i holds a value of j."""
        return self._place >= 0

    @cached_property
    def d2(self) -> Tensor:
        """(E,) float64 squared distance of i from j, as i last heard it; 0 if it did not."""
        if len(self.holders) == 0:
            return torch.zeros(len(self.senders), dtype=torch.float64)
        return torch.where(self.heard, self.distances[self._place], 0.0)

    @cached_property
    def scale(self) -> Tensor:
        """(E,) float64 mean of the positive squared distances in i's buffers; 0 if none."""
        total = torch.zeros(self.n, dtype=torch.float64).index_add_(0, self.holders, self.distances)
        positive = torch.bincount(self.holders[self.distances > 0], minlength=self.n)
        return (total / positive.clamp(min=1))[self.senders]

    @cached_property
    def _place(self) -> Tensor:
        """(E,) where among the buffers the receiver's stands; -1 if nowhere."""
        if len(self.holders) == 0:
            return torch.full_like(self.senders, -1)
        keys, wanted = self.holders * self.n + self.others, self.senders * self.n + self.receivers
        place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        return torch.where(keys[place] == wanted, place, -1)


@final
@dataclass(frozen=True, repr=False)
class Weighting:
    """A rule that turns what senders know into a weight matrix.

    Attributes:
        name: as tables show it.
        rule: what is given along each edge of a `View` that leads away; (E,) float64.
        smallest: K_max -> the smallest share that can occur.
        sight: what the rule must know of the buffers.
        corrected: whether distances are those of y = x / a, not of x as in Algorithm 1.
        indifferent: K up to which the rule gives the same whatever it sees.
        sees_unheard: whether a receiver that was not heard counts as being at distance 0.
    """

    name: str
    rule: Callable[[View], Tensor]
    smallest: Callable[[int], float]
    sight: Sight = "nothing"
    corrected: bool = False
    indifferent: int = 1
    sees_unheard: bool = True

    def matrix(self, adjacency: Tensor, squared_distances: Tensor) -> Tensor:
        """The (n, n) float64 weight matrix; `W[j, i]` is what node i gives to node j."""
        adjacency, d2 = _checked(adjacency, squared_distances)
        senders, receivers = adjacency.nonzero().T
        holders, others = torch.ones_like(adjacency).nonzero().T
        view = View(len(adjacency), senders, receivers, holders, others, d2.flatten())
        return dense(view.n, view.senders, view.receivers, self.along(view))

    def along(self, view: View, wire: torch.dtype | None = None) -> Tensor:
        """The weights along the edges of a view; (E,) float64.

        `wire`: the dtype that values travel in, if it is not their own; see `keep_the_rest`.
        """
        weights = keep_the_rest(view, self.rule(view), wire)
        if not bool((weights > 0).all()):
            node = int(view.senders[weights <= 0][0])
            raise ValueError(
                f"weighting {self.name}: column {node} of W sums to more than 1, and what node "
                f"{node} keeps is too little to make up for that: keep more in W[{node}, {node}]"
            )
        return weights

    def floor(self, max_degree: int) -> float:
        """delta of Definition 1: no positive weight is smaller, if out-degrees are at most this."""
        return self.smallest(max_degree) if max_degree > 1 else 1.0

    def looks(self, graphs: Topology) -> Sight:
        """What it must know on these graphs."""
        return "nothing" if graphs.degrees[1] <= self.indifferent else self.sight

    def __repr__(self) -> str:
        return self.name


# --------------------------------------------------------------------------- the rules


def uniform() -> Weighting:
    """Everybody gets the same: w = 1 / K_i. The original Push-SUM.

    >>> uniform().matrix(torch.ones(2, 2), torch.zeros(2, 2)).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    return Weighting("uniform", lambda view: 1 / view.degree, lambda K: 1 / K)


def lazy(c: float) -> Weighting:
    """A constant fraction of the uniform weight, w = c / K_i; the rest stays at home.

    The control that tells adapting from merely being slow: Moreau weights, too, are smaller than
    uniform ones. `lazy(1)` is `uniform()`.

    >>> lazy(0.5).matrix(torch.ones(2, 2), torch.zeros(2, 2)).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    expected = "a lazy weighting needs 0 < c <= 1 (1 is uniform)"
    checks.number("c", c, lambda c: 0 < c <= 1, expected)
    return Weighting(_named("lazy", c=c), lambda view: c / view.degree, lambda K: c / K)


def moreau(k: float, v: float) -> Weighting:
    """Moreau weighting: the further away a neighbour was last heard, the more it is given.

        w_ji = (1 - v) / (K_i (1 + v)) * (1 + v - exp(-k d_ij^2)),   j != i

    which lies in [v (1 - v) / ((1 + v) K_i), (1 - v) / K_i), whatever the distance; the paper's
    gamma cancels. Good values of k depend on the model, since k multiplies a squared distance in
    parameter space; `scale_free_moreau` does not have that problem.

    >>> near_and_far = torch.tensor([[0.0, 0.0, 9.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> W = moreau(k=1, v=0.1).matrix(torch.ones(3, 3), near_and_far)
    >>> [round(w, 3) for w in W[:, 0].tolist()]  # node 0 keeps, gives to 1, gives to 2
    [0.673, 0.027, 0.3]
    """
    _check(v, k=k)
    return Weighting(
        _named("moreau", k=k, v=v),
        lambda view: _moreau_share(view.degree, k * view.d2, v),
        lambda K: _moreau_floor(K, v),
        "neighbours",
    )


def scale_free_moreau(c: float = 1.0, v: float = 0.1) -> Weighting:
    """Moreau weighting with k_i = c / (mean of the squared distances in node i's live buffers).

    Scaling all parameters by any factor leaves the weights as they are, so c needs no tuning to
    the model. Definition 1 holds because Moreau's bounds on w do not depend on k: it may differ
    from node to node and from step to step. A node that has heard nobody, or whose neighbours all
    agree with it, has no scale; its weights are on the floor, as with any k at distance 0.

    >>> d2 = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 9.0], [4.0, 9.0, 0.0]])
    >>> large, small = (scale_free_moreau().matrix(torch.ones(3, 3), s * d2) for s in (1, 2**-30))
    >>> torch.equal(large, small)
    True
    """
    _check(v, c=c)

    def rule(view: View) -> Tensor:
        return _moreau_share(view.degree, c * _relative(view.d2, view.scale), v)

    name = _named("scale-free-moreau", c=c, v=v)
    return Weighting(name, rule, lambda K: _moreau_floor(K, v), "buffers")


def far_first(c: float = 1.0, v: float = 0.1) -> Weighting:
    """As much as uniform weights give, and more of it to those who are further away.

        w_ji = (K_i - 1) / K_i * s_ij / sum_l s_il,   s_ij = 1 + v - exp(-c d_ij^2 / mean d_i^2)

    over the receivers j, l != i, with d_ij^2 = ||y_i - y_j||^2 between corrected parameters, as
    node i last heard them, and the mean of the positive ones in its live buffers; in a run, one
    that it has not heard counts as being at the mean. (`matrix` is given distances alone, and
    takes all of them as heard.) (Moreau weights give less the nearer everybody is, and
    follow the scalars a as well, since they compare x.) A node with one receiver gives it 1/2, as
    uniform weights do.

    >>> d2 = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 9.0], [4.0, 9.0, 0.0]])
    >>> W = far_first().matrix(torch.ones(3, 3), d2)
    >>> [round(w, 3) for w in W[:, 0].tolist()]  # node 0 keeps a third, as with uniform weights
    [0.333, 0.216, 0.451]
    """
    _check(v, c=c)

    def rule(view: View) -> Tensor:
        d2 = torch.where(view.heard, view.d2, view.scale)
        parts = torch.where(view.away, v - torch.expm1(-c * _relative(d2, view.scale)), 0.0)
        total = torch.zeros(view.n, dtype=torch.float64).index_add_(0, view.senders, parts)
        return parts / total[view.senders] * ((view.degree - 1) / view.degree)

    def smallest(K: int) -> float:  # one receiver at distance 0, the others far away
        return (K - 1) / K * v / (v + (K - 2) * (1 + v))

    return Weighting(
        _named("far-first", c=c, v=v),
        rule,
        smallest,
        "buffers",
        corrected=True,
        indifferent=2,  # nobody to prefer
        sees_unheard=False,
    )


def own(
    function: Matrix, floor: float = 1e-6, corrected: bool = False, sight: Sight = "buffers"
) -> Weighting:
    """A weighting of your own, `function(adjacency, squared_distances) -> W`.

    Its result is checked against Definition 1 at every step, with `floor` as delta. A rounding
    gap below 1e-6 in a column's sum is closed on the diagonal, so that mass is conserved exactly.
    Distances are those of x, as in Algorithm 1, or, if `corrected`, those of y = x / a. A function
    that looks at no distances says sight="nothing": none are then computed, and it is given zeros.
    A plain function may be given wherever a weighting is expected; `own` is there for the rest.

    >>> def half_stays(adjacency, squared_distances):
    ...     away = adjacency.T.double().fill_diagonal_(0)
    ...     away /= 2 * away.sum(0)
    ...     return away + torch.diag(1 - away.sum(0))
    >>> own(half_stays).matrix(torch.ones(3, 3, dtype=torch.bool), torch.zeros(3, 3))[0].tolist()
    [0.5, 0.25, 0.25]
    """
    if not callable(function):
        raise ValueError(f"own({function!r}): give a function (adjacency, squared_distances) -> W")
    if sight not in get_args(Sight):
        raise ValueError(f"sight = {sight!r}: choose from {', '.join(get_args(Sight))}")
    checks.number(
        "floor", floor, lambda floor: 0 < floor <= 1, "the smallest weight lies in (0, 1]"
    )
    name = getattr(function, "__name__", type(function).__name__)

    def rule(view: View) -> Tensor:
        if view.n > MOST_DENSE:
            raise ValueError(
                f"weighting {name}: a function of (n, n) matrices is for up to {MOST_DENSE} nodes, "
                f"not {view.n}: use one of pushsum.weighting"
            )
        adjacency = dense(view.n, view.receivers, view.senders, torch.ones_like(view.away))
        d2 = dense(view.n, view.others, view.holders, view.distances)
        W = function(adjacency.clone(), d2)
        try:
            W = torch.as_tensor(W).double()
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"weighting {name}: returned {type(W).__name__}, expected an (n, n) tensor"
            ) from None
        check_definition_1(W, adjacency, floor, name)
        return W[view.receivers, view.senders]

    return Weighting(name, rule, lambda K: floor, sight, corrected, sees_unheard=False)


#: The rules by the names that `parse` knows.
RULES: dict[str, Callable[..., Weighting]] = {
    "uniform": uniform,
    "lazy": lazy,
    "moreau": moreau,
    "scale-free-moreau": scale_free_moreau,
    "far-first": far_first,
}


def parse(text: str) -> Weighting:
    """The weighting of a line of text, `name`, `name:parameter=value,...` or as it is shown.

    `FILE.py:function` is one of your own, or `FILE.py:name` what `own` made of it there.

    >>> parse("moreau:k=0.1,v=0.2")
    moreau(k=0.1, v=0.2)
    >>> parse("lazy(c=0.5)")
    lazy(c=0.5)
    """
    if own_code.is_named(text):
        return as_weighting(own_code.load("weighting", text))
    name, _, rest = spelled(text).partition(":")
    if name not in RULES:
        raise ValueError(f"{unknown('weighting', name, RULES)}, or FILE.py:function for your own")
    known = signature(RULES[name]).parameters
    parameters: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise ValueError(f"weighting '{text}': {key} needs a number, not '{value}'") from None
    required = {key for key, p in known.items() if p.default is p.empty}
    if not required <= parameters.keys() <= known.keys():
        example = ":".join(filter(None, (name, ",".join(f"{key}=0.1" for key in known))))
        takes = " and ".join(known) or "nothing"
        raise ValueError(f"weighting '{text}': {name} takes {takes}: write {example}")
    return RULES[name](**parameters)


def spelled(text: str) -> str:
    """The one way to write what `parse` reads, whatever its case; files from the root.

    >>> spelled("Moreau(k=0.1, v=0.2)")
    'moreau:k=0.1,v=0.2'
    """
    if own_code.is_named(text):
        return own_code.spelled(text)
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\(([^():]*)\)|:([^():]*))?\s*", text)
    if match is None:
        return text
    name, shown, written = match.groups()
    parameters = [part.strip() for part in (shown or written or "").split(",")]
    return ":".join(filter(None, (canonical(name, RULES), ",".join(filter(None, parameters)))))


def warnings(weighting: Weighting, graphs: Topology) -> list[str]:
    """What is allowed, but probably not meant: to weigh by distances that do not count.

    >>> from pushsum.topology import ring
    >>> print(*warnings(moreau(k=1, v=0.1), ring(4)))
    moreau(k=1, v=0.1) on ring(4): 100 % of the links are one-way for good. Their senders never hear
    the receivers, and give them the smallest weight whatever the distance: consider uniform
    >>> print(*warnings(far_first(), ring(4)))
    far-first(c=1, v=0.1) on ring(4): every node has one receiver at a time, and nobody to prefer:
    these are uniform weights
    """
    if weighting.sight == "nothing":
        return []
    if weighting.looks(graphs) == "nothing" and graphs.n > 1:
        return [
            f"{weighting} on {graphs}: every node has one receiver at a time, and nobody to "
            "prefer: these are uniform weights"
        ]
    unheard = one_way(graphs) if weighting.sees_unheard else 0.0
    if unheard <= 0.5:
        return []
    return [
        f"{weighting} on {graphs}: {100 * unheard:.0f} % of the links are one-way for good. "
        "Their senders never hear the receivers, and give them the smallest weight whatever the "
        "distance: consider uniform"
    ]


def one_way(graphs: Topology) -> float:
    """The share of links, self-loops apart, whose sender never hears the receiver.

    >>> from pushsum.topology import exponential, ring
    >>> one_way(ring(6)), round(one_way(exponential(6)), 3)
    (1.0, 0.333)
    """
    links = unanswered = 0
    for t in range(1, (graphs.cycle or 0) + 1):  # without a cycle, everybody hears everybody
        senders, receivers = graphs.edges(t)
        away = senders != receivers
        links += int(away.sum())
        unanswered += int((~graphs.answered(t) & away).sum())
    return unanswered / max(1, links)


def as_weighting(weighting: str | Weighting | Matrix) -> Weighting:
    """Accept a line of text or a plain function where a weighting is expected."""
    if isinstance(weighting, Weighting):
        return weighting
    if isinstance(weighting, str):
        return parse(weighting)
    makers: tuple[object, ...] = (*RULES.values(), own)
    if weighting in makers:
        name = getattr(weighting, "__name__", "")
        raise ValueError(f"weighting = {name}: call it, e.g. weighting.{name}(...)")
    if callable(weighting):
        return own(weighting)
    raise ValueError(
        f"weighting = {weighting!r}: give one of pushsum.weighting, such as uniform(), "
        "or a function (adjacency, squared_distances) -> W"
    )


# --------------------------------------------------------------------------- the pieces


def check_definition_1(W: Tensor, adjacency: Tensor, floor: float, name: str) -> None:
    """Refuse a weight matrix that breaks Definition 1, naming the first column that does.

    >>> everybody = torch.ones(2, 2, dtype=torch.bool)
    >>> check_definition_1(torch.full((2, 2), 0.5), everybody, floor=0.1, name="halves")
    >>> check_definition_1(torch.full((2, 2), 0.6), everybody, floor=0.1, name="more")
    Traceback (most recent call last):
    ValueError: weighting more: column 0 of W sums to 1.2..., not 1: node 0 must give away ...
    """
    if W.shape != adjacency.shape:
        raise ValueError(
            f"weighting {name}: W has shape {tuple(W.shape)}, expected {tuple(adjacency.shape)}"
        )

    support = adjacency.T.bool()
    small = f"gives {{weight:g}} to node {{row}}, below the floor {floor:g}"
    faults = (
        (~W.isfinite(), "has {weight:g} for node {row}: weights must be finite"),
        (
            ~support & (W != 0),
            "gives {weight:g} to node {row}, but node {column} does not send to node {row} at this "
            "step: put 0 where adjacency[{column}, {row}] is False",
        ),
        (support & (W <= 0), f"{small}: raise the weight"),
        (
            support & (W < floor * (1 - 1e-9)),
            f"{small}: raise the weight, or state a smaller floor with weighting.own(function, "
            "floor=...)",
        ),
        (
            ((W.sum(0) - 1).abs() > 1e-6)[None, :] & torch.eye(len(W), dtype=torch.bool),
            "sums to {total:.9g}, not 1: node {column} must give away exactly what it holds (keep "
            "the rest in W[i, i])",
        ),
    )
    for bad, problem in faults:
        if bool(bad.any()):
            column, row = bad.T.nonzero()[0].tolist()
            said = problem.format(
                row=row, column=column, weight=W[row, column], total=W[:, column].sum()
            )
            raise ValueError(f"weighting {name}: column {column} of W {said}")


def keep_the_rest(view: View, shares: Tensor, wire: torch.dtype | None = None) -> Tensor:
    """Give `shares` along the edges that lead away and keep the rest at home.

    Shares are rounded to multiples of 2^-53: their sums are then exact in float64, in any order, so
    each column sums to exactly 1 and push-sum loses no mass to the weights; and none falls to 0.
    Some are rounded up and some down, as if by chance. Sums with weights like 1/6 often end midway
    between two numbers of float32. If all weights were rounded up, so would be these sums, and the
    average would drift.

    Values of few bits come from the wire again and again. Their products with weights of many bits
    would be rounded in the same way in every step, and the average would drift. So the weights are
    then multiples of a grain with which these products fit into float32.
    """
    grain = _GRAIN
    if wire is not None and torch.finfo(wire).bits < 32:
        room = 4 * torch.finfo(torch.float32).eps / torch.finfo(wire).eps  # and two bits to spare
        grain = max(1 / room, 4 * float(view.degree.max()) ** 2)
    shares = shares * grain
    up = _coins(view) | (shares < _MANY_GRAINS)
    rounded = torch.where(up, shares.ceil(), shares.floor())
    given = torch.where(view.away, rounded / grain, 0.0)
    total = torch.zeros(view.n, dtype=torch.float64).index_add_(0, view.senders, given)
    return torch.where(view.away, given, 1 - total[view.senders])


def _coins(view: View) -> Tensor:
    """(E,) heads or tails for every edge of a graph: a function of the graph alone."""
    edges = (
        31 * view.senders + 17 * view.receivers + 13 * view.degree.long() + 7 * len(view.senders)
    )
    return ((edges + 1) * 2654435761 >> 16) & 1 == 1


def dense(n: int, senders: Tensor, receivers: Tensor, weights: Tensor) -> Tensor:
    """Edge weights as an (n, n) matrix, `W[receiver, sender]`."""
    W = torch.zeros(n, n, dtype=weights.dtype)
    W[receivers, senders] = weights
    return W


def _checked(adjacency: Tensor, squared_distances: Tensor) -> tuple[Tensor, Tensor]:
    """(n, n) bool with a True diagonal, (n, n) float64; refuses what is not."""
    adjacency, d2 = torch.as_tensor(adjacency), torch.as_tensor(squared_distances).double()
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise ValueError(f"adjacency has shape {tuple(adjacency.shape)}, expected (n, n)")
    if d2.shape != adjacency.shape:
        raise ValueError(
            f"squared_distances has shape {tuple(d2.shape)}, expected {tuple(adjacency.shape)}"
        )
    if not bool((d2 >= 0).all()):
        i, j = (~(d2 >= 0)).nonzero()[0].tolist()
        raise ValueError(f"squared_distances[{i}, {j}] = {d2[i, j]:g}: a square is not negative")
    return adjacency.bool() | torch.eye(len(adjacency), dtype=torch.bool), d2


def _relative(d2: Tensor, scale: Tensor) -> Tensor:
    """Squared distances in multiples of a node's mean; 0 where it has none."""
    return torch.where(scale > 0, d2 / scale, 0.0).nan_to_num(nan=1.0)  # inf / inf: about the mean


def _moreau_share(K: Tensor, exponent: Tensor, v: float) -> Tensor:
    # 1 + v - exp(-z), without losing a small v
    return (1 - v) / (K * (1 + v)) * (v - torch.expm1(-exponent))


def _moreau_floor(K: int, v: float) -> float:
    return v * (1 - v) / ((1 + v) * K)


def _named(rule: str, **parameters: float) -> str:
    """`moreau(k=0.1, v=0.1)`, with as many digits as it takes: nodes compare names."""

    def digits(value: float) -> str:
        short = f"{value:g}"
        return short if float(short) == value else repr(float(value))

    return f"{rule}({', '.join(f'{key}={digits(value)}' for key, value in parameters.items())})"


def _check(v: float, **positive: float) -> None:
    for name, value in positive.items():
        expected = f"this weighting needs a finite {name} > 0"
        checks.number(name, value, lambda value: value > 0, expected)
    checks.number("v", v, lambda v: 0 < v < 1, "this weighting needs 0 < v < 1")
