"""A configuration, built: data, split, network, graphs and algorithm, ready to be run.

`build` turns names into objects, `sampling` draws batches, `costs` models bytes and time, and
`evaluation` tests models; an `Experiment` holds one of each.
"""

from pushsum.experiment.environment import environment
from pushsum.experiment.experiment import Experiment

__all__ = ["Experiment", "environment"]
