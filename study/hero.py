"""The picture at the head of README: six nodes alone, and the same six together.

    python -m study.hero

Handwritten digits; three nodes hold only 0-4, the others only 5-9. Both runs take the same steps on
the same batches; in the second, every node sends its parameters to one other node per step.
"""

from cmath import rect
from math import pi
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import pushsum as ps
from pushsum.drawing import save, svg
from study.publish import IMAGES

NODES, STEPS, EVERY = 6, 300, 10
ALONE, TOGETHER = svg.SOFT, svg.PALETTE[0]
LABELS = (svg.PALETTE[2], svg.PALETTE[1])  #: colours of the nodes with 0-4 and with 5-9


class Curves(NamedTuple):
    """Test accuracies of every node's own model: a row per node, a column per evaluation."""

    alone: list[list[float]]
    together: list[list[float]]

    def ends(self) -> tuple[float, float]:
        """The mean over the nodes at the end, alone and together."""
        return fmean(row[-1] for row in self.alone), fmean(row[-1] for row in self.together)


def main() -> None:
    """Run, draw, save."""
    found = curves()
    save(picture(found), IMAGES / "hero.svg")
    print("alone {:.1%}, together {:.1%}".format(*found.ends()))


def curves() -> Curves:
    """Both runs."""
    digits = ps.data.load("digits")
    images, labels = digits.scaled(digits.train_x), digits.train_y
    parts = [torch.as_tensor(p) for p in ps.data.partition.clusters(labels, NODES, shared=False)]
    model = ps.models.build("mlp", (1, 8, 8), classes=10)
    weights = list(model.parameters())
    start = parameters_to_vector(weights).detach().repeat(NODES, 1)
    test_x = digits.scaled(digits.test_x)

    def gradient(y: Tensor, t: int) -> Tensor:
        chance = torch.Generator().manual_seed(t)
        rows = []
        for part, row in zip(parts, y, strict=True):
            vector_to_parameters(row, weights)
            batch = part[torch.randint(len(part), (32,), generator=chance)]
            loss = cross_entropy(model(images[batch]), labels[batch])
            rows.append(parameters_to_vector(torch.autograd.grad(loss, weights)))
        return torch.stack(rows)

    def accuracy(row: Tensor) -> float:
        vector_to_parameters(row, weights)
        with torch.no_grad():
            return float((model(test_x).argmax(1) == digits.test_y).double().mean())

    def run(every: int) -> list[list[float]]:
        points = [[accuracy(row) for row in start]]
        sgp, graphs = ps.algorithms.sgp(0.05), ps.topology.exponential(NODES)
        for r in ps.iterate(sgp, graphs, gradient, start, STEPS, every=every):
            if r.t % EVERY == 0:
                points.append([accuracy(row) for row in r.y])
        return [list(column) for column in zip(*points, strict=True)]

    return Curves(alone=run(every=STEPS + 1), together=run(every=1))


# --------------------------------------------------------------------------- drawing


def picture(found: Curves) -> str:
    """Who sends to whom, and what comes of it; large letters, for phones."""
    width, height = 740, 330
    title = "Accuracy of six nodes alone and together"
    return svg.document(width, height, title, [_network(145, 160, 100), _chart(found, 360, 42)])


def _network(x: float, y: float, radius: float) -> str:
    centre = complex(x, y)
    places = [centre + rect(radius, 2 * pi * i / NODES - pi / 2) for i in range(NODES)]
    hops = ((1, svg.INK), (2, svg.FAINT), (4, svg.FAINT))  # of Exponential, one per step
    arrows = [
        _arrow(places[i], places[(i + hop) % NODES], colour)
        for hop, colour in hops
        for i in range(NODES)
    ]
    dots = [
        f'<circle cx="{svg.number(p.real)}" cy="{svg.number(p.imag)}" r="30" '
        f'fill="{LABELS[i * 2 // NODES]}" stroke="#FFFFFF" stroke-width="2"/>'
        + svg.text(p.real, p.imag + 7, ("0–4", "5–9")[i * 2 // NODES], 21, "#FFFFFF", "middle", 600)
        for i, p in enumerate(places)
    ]
    below = "each node holds five digits"
    return "".join([*arrows, *dots, svg.text(x, 318, below, 21, svg.SOFT, "middle")])


def _arrow(start: complex, end: complex, colour: str) -> str:
    along = (end - start) / abs(end - start)
    tail, tip = start + 32 * along, end - 34 * along
    back = tip - 9 * along
    corners = (tip, back + 4.5j * along, back - 4.5j * along)
    points = " ".join(f"{svg.number(p.real)},{svg.number(p.imag)}" for p in corners)
    line = svg.line(tail.real, tail.imag, back.real, back.imag, colour)
    return f'{line}<polygon points="{points}" fill="{colour}"/>'


def _chart(found: Curves, left: float, top: float) -> str:
    right, bottom = 610, 258

    def across(step: float) -> float:
        return left + (right - left) * step / STEPS

    def down(accuracy: float) -> float:
        return bottom - (bottom - top) * accuracy

    parts = [svg.text(left - 52, top - 18, "test accuracy of each node", 21, weight=600)]
    for tick in (0, 0.5, 1):
        parts.append(svg.line(left, down(tick), right, down(tick), svg.GRID))
        parts.append(svg.text(left - 8, down(tick) + 7, f"{tick:.0%}", 20, svg.SOFT, "end"))
    for step in (0, 150, 300):
        parts.append(svg.text(across(step), bottom + 24, str(step), 20, svg.SOFT, "middle"))
    parts.append(svg.text((left + right) / 2, 318, "training step", 21, svg.SOFT, "middle"))
    for rows, colour in ((found.alone, ALONE), (found.together, TOGETHER)):
        for row in rows:
            points = [(across(EVERY * k), down(value)) for k, value in enumerate(row)]
            parts.append(svg.curve(points, colour, ""))
    named = zip(("alone", "together"), (ALONE, TOGETHER), found.ends(), strict=True)
    for name, colour, end in named:
        parts.append(svg.text(right + 10, down(end) + 9, f"{end:.0%}", 34, colour, weight=700))
        parts.append(svg.text(right + 10, down(end) + 34, name, 23, colour))
    return "".join(parts)


if __name__ == "__main__":
    main()
