"""Push-SUM with late messages (OSGP), and with private first steps."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pushsum import checks
from pushsum.optimizers import Rate, sgd
from pushsum.protocol import Algorithm, Got, Sent, State, Step, Underway, push_moved, what_is_sent
from pushsum.randomness import stream, uniforms


def osgp(lr: Rate, delay: int = 1, random: bool = False) -> Algorithm:
    """Overlap SGP: what others send arrives `delay` steps late; nobody waits for it.

        x_half = x - lr g(y)
        x'_i = W_ii x_half_i + sum_j W_ij x_half_j of `delay` steps ago, over the others j
        a' in the same way,   y = x / a

    Every node sends in every step. The mass at the nodes and the mass under way add up to what they
    always were, and `average` is over both. With delay = 0 it is SGP.

    Args:
        lr: step size.
        delay: steps from sending to arrival.
        random: whether each node draws its delay from 0..delay anew in every step, for all that
            was sent to it in that step.

    >>> import pushsum as ps
    >>> x0 = torch.tensor([[0.0], [1.0], [5.0]]).double()
    >>> *_, last = ps.iterate(osgp(0.1, delay=2), ps.topology.ring(3), lambda y, t: 0 * y, x0, 200)
    >>> [round(y, 3) for y in last.y.flatten().tolist()]  # without gradients: the average
    [2.0, 2.0, 2.0]

    Source: Assran, Loizou, Ballas and Rabbat, Stochastic gradient push for distributed deep
    learning, ICML 2019. Theirs waits for what is more than tau steps late; a delay of ours never
    exceeds it.
    """
    delay = checks.count("delay", delay, "the number of steps", least=0)
    if not isinstance(random, bool):
        raise ValueError(f"random = {random!r}: whether delays are drawn, True or False")

    def start(x0: Tensor, step: Step) -> Underway:
        nothing = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
        return Underway(
            tuple(torch.zeros_like(x0) for _ in range(delay)),
            tuple(nothing.clone() for _ in range(delay)),
        )

    def arrived(late: tuple[Tensor, ...], sent: Tensor, step: Step) -> tuple[Tensor, ...]:
        """What arrives now, followed by what is under way."""
        if not random:
            return (*late, sent)
        drawn = uniforms(step.seed, "delay", step.t, shape=(step.n,)) * (delay + 1)
        steps = torch.from_numpy(drawn.astype(int))[step.nodes].to(sent.device)
        nothing = torch.zeros_like(sent)
        shape = (-1, *[1] * (sent.ndim - 1))
        return tuple(
            before + torch.where((steps == k).view(shape), sent, nothing)
            for k, before in enumerate((*late, nothing))
        )

    def receive(state: State, carried: Any, move: Tensor, got: Got, step: Step) -> State:
        kept = got.kept.to(state.a.device)
        own_x = kept[:, None].to(move) * (state.x + move)
        own_a = kept * state.a
        x, *late_x = arrived(state.kept.x, got.push[0] - own_x, step)
        a, *late_a = arrived(state.kept.a, got.a - own_a, step)
        return State(own_x + x, own_a + a, Underway(tuple(late_x), tuple(late_a)))

    return Algorithm(
        "OSGP",
        sgd(lr),
        start=start,
        send=push_moved,
        receive=receive,
        late=delay,
        holds_mass=True,
    )


def private_push_sum(
    algorithm: Algorithm, steps: int = 3, scale: float = 10.0, seed: int | None = None
) -> Algorithm:
    """A push method whose first messages tell nothing: they are sent with random weights.

        P_ji = r_i W_ji to the others j,   P_ii = 1 - sum of these      in the first `steps` steps
        x' = P x_half,   a' = W a

    r is normal with the given scale, drawn anew for every step, node and number of x, so weights
    are real numbers, negative ones too, whose columns sum to 1: outside Definition 1, but the sums
    over the nodes stay what they were, and so does the limit. y is noise in these steps; where a
    gradient there would do harm, give a step size of 0. For float64, since numbers grow about
    `scale`-fold in each of these steps.

    Args:
        algorithm: any method that only pushes.
        steps: how many are private.
        scale: of the random weights.
        seed: a node's secret; None: the run's, which everybody knows, for simulations.

    >>> import pushsum as ps
    >>> x0 = torch.tensor([[0.0], [1.0], [5.0]]).double()
    >>> method = private_push_sum(ps.algorithms.sgp(0.1), steps=3)
    >>> run = list(ps.iterate(method, ps.topology.ring(3), lambda y, t: 0 * y, x0, 100))
    >>> bool(run[2].x.abs().max() > 100), round(run[-1].y[0].item(), 9)
    (True, 2.0)

    Source: Gao, Zhang, Ahmad and Wang, Privacy-preserving average consensus on directed graphs
    using push-sum, IEEE CNS 2018. Their weights are one number per receiver, ours one factor for
    all receivers and each number of x.
    """
    checks.count("steps", steps, "the number of private steps", least=0)
    checks.number("scale", scale, lambda s: s > 0, "that of random weights is a finite number > 0")
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm = {algorithm!r}: give a method, such as sgp(lr=0.1)")
    push, pull, mean = what_is_sent(algorithm)
    if push == 0 or pull or mean:
        raise ValueError(
            f"algorithm = {algorithm.name}: private steps are for methods that only push, such as "
            "SGP or Push-DIGing"
        )

    def disguised(sent: Tensor, step: Step, place: int) -> Tensor:
        secret = step.seed if seed is None else seed
        draws = [
            stream(secret, "private", step.t, node, place).standard_normal(sent.shape[1])
            for node in step.nodes.tolist()
        ]
        return sent * (scale * torch.stack([torch.from_numpy(row) for row in draws]).to(sent))

    def start(x0: Tensor, step: Step) -> Any:
        if x0.dtype != torch.float64:
            raise ValueError(
                f"x0 has dtype {x0.dtype}: private steps need float64: x0.double(), or "
                "model.double() in your own loop"
            )
        return algorithm.start(x0, step)

    def send(state: State, carried: Any, move: Tensor, step: Step) -> Sent:
        sent = algorithm.send(state, carried, move, step)
        if step.t > steps:
            return sent
        return Sent(push=tuple(disguised(value, step, k) for k, value in enumerate(sent.push)))

    def receive(state: State, carried: Any, move: Tensor, got: Got, step: Step) -> State:
        if step.t <= steps:  # a node keeps the difference
            sent = algorithm.send(state, carried, move, step).push
            push = tuple(
                held + value - disguised(value, step, k)
                for k, (held, value) in enumerate(zip(got.push, sent, strict=True))
            )
            got = got._replace(push=push)
        return algorithm.receive(state, carried, move, got, step)

    return replace(
        algorithm,
        name=f"private {algorithm.name}",
        start=start,
        send=send,
        receive=receive,
        elementwise=False,
    )
