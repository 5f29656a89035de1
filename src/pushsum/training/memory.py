"""What a run of the simulator needs."""

import torch

from pushsum import topology
from pushsum.engines.arrivals import Arrivals
from pushsum.engines.engine import Setup
from pushsum.engines.memory import HOLES, LARGE
from pushsum.engines.simulator import Network
from pushsum.engines.tree import leaves
from pushsum.experiment import Experiment
from pushsum.optimizers import optimizer_maker, torch_rule
from pushsum.protocol import Known, what_is_sent

MOST_STEPS, MOST_EDGES = 1000, 10**6  #: that are looked at to see how far back buffers reach


def planned(experiment: Experiment) -> tuple[float, int, int]:
    """Bytes of memory besides activations, for how many (n, d) arrays, and the bytes of one.

    Of arrays that are not too large, freed ones are kept, and not every hole is of use.
    """
    count, size = arrays(experiment), experiment.n * experiment.layout.d * experiment.dtype.itemsize
    return count * size * (1 + HOLES * (size < LARGE)), count, size


def arrays(experiment: Experiment) -> int:
    """How many (n, d) arrays there are at once, at the end of a step, when there are most.

    Before it: x, y, what was sent, and the snapshots that buffers need. In it: the gradients, and
    the new x, y and what was sent. What the method and the optimizer keep is there twice.
    """
    c, rule, d = experiment.config.algorithm, experiment.rule, 1000  # like more columns
    if rule is not None:
        rule = torch_rule(optimizer_maker(str(c.optimizer), c.lr, c.options), experiment.rate)
    network = Network(Setup(experiment.algorithm, topology.full(1), rule))
    row = torch.zeros(1, d)
    now = network.advance(network.begin(row), Known(row))
    kept = sum(t.numel() for t in leaves((now.state.kept, now.optimizer))) / d
    copies = 2 if rule is not None else 0  # a torch optimizer works on copies of y and g
    push, pull, _ = what_is_sent(experiment.algorithm, experiment.n, experiment.layout.d)
    late = 0
    if experiment.faults is not None and experiment.faults.waits:  # before the step, and after it
        late = 2 * (experiment.faults.longest + 1) * (push + pull)
    sent = push + pull > 0
    return round(3 + snapshots(experiment) + 1 + 2 + sent + 2 * kept + copies + late)


def snapshots(experiment: Experiment) -> int:
    """How many arrays besides the last one buffers look back on."""
    graphs = experiment.graphs
    sight = experiment.algorithm.weighting.looks(graphs)
    if sight == "nothing":
        return 0
    arrivals, most, looked = Arrivals(graphs.n), 0, 0
    enough = graphs.period + 2 * (graphs.cycle or graphs.period)
    for t in range(1, min(MOST_STEPS, enough) + 1):
        senders, receivers = graphs.edges(t)
        looked += len(senders)
        if looked > MOST_EDGES:
            break
        if sight == "neighbours":
            answered = graphs.answered(t)
            senders, receivers = senders[answered], receivers[answered]
        arrivals = arrivals.expired(t, graphs.period).heard(t, senders, receivers)
        lasting = arrivals.lasting(t, graphs.period)
        most = max(most, sum(step < t for step, _ in lasting.steps))
    return most
