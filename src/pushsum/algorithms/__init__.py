"""The methods: SGP and what has grown from it over directed graphs, one text each.

Every engine runs the same text. To write another one, return an `Algorithm` with the functions that
differ from Algorithm 1 (see `pushsum.protocol`), and give it a line in `pushsum.methods`, or name
it as `FILE.py:function` wherever a method is named.
"""

from collections.abc import Mapping
from typing import Any

from pushsum.algorithms.personal import ditto, pfedme
from pushsum.algorithms.pull import ab, abm, abn, accelerated_ab, frost, push_pull
from pushsum.algorithms.push import all_reduce, dextra, msgap, msgp, qgm, sgap, sgp
from pushsum.algorithms.tracking import add_opt, push_diging, s_addopt, sonata
from pushsum.algorithms.variance import push_lsvrg_up
from pushsum.algorithms.variants import osgp, private_push_sum
from pushsum.methods import ADAPTIVE, METHODS, NAMES, Method, canonical, find, takes
from pushsum.optimizers import Rate, Rule, momentum_sgd, sgd
from pushsum.protocol import Algorithm, Got, Gradient, Sent, State, Step

__all__ = [
    "ADAPTIVE",
    "METHODS",
    "NAMES",
    "Algorithm",
    "Got",
    "Gradient",
    "Method",
    "Rate",
    "Rule",
    "Sent",
    "State",
    "Step",
    "ab",
    "abm",
    "abn",
    "accelerated_ab",
    "add_opt",
    "all_reduce",
    "dextra",
    "ditto",
    "frost",
    "momentum_sgd",
    "msgap",
    "msgp",
    "named",
    "osgp",
    "parse",
    "pfedme",
    "private_push_sum",
    "push_diging",
    "push_lsvrg_up",
    "push_pull",
    "qgm",
    "s_addopt",
    "sgap",
    "sgd",
    "sgp",
    "sonata",
    "takes",
]


def named(name: str, weighting: Any = None) -> Algorithm:
    """The method of a name beside an optimizer, whose step size and momentum count.

    >>> named("push-diging").name
    'Push-DIGing'
    """
    weights = find(name).weighting if weighting is None else weighting
    return parse(name, lr=1.0, momentum=0.9, weighting=weights)


def parse(name: str, parameters: Mapping[str, Any] | None = None, **given: Any) -> Algorithm:
    """Make the method of that name of what it takes among the given values.

    Args:
        name: of `pushsum.methods`, or `FILE.py:function`.
        parameters: of the method's own; one that it does not take is refused.
        given: lr, momentum, weighting; those that it does not take are left out.

    >>> parse("msgp", lr=0.1, momentum=0.8, weighting="uniform").name
    'MSGP'
    >>> parse("osgp", {"delay": 2, "tau": 3}, lr=0.1)
    Traceback (most recent call last):
    ValueError: algorithm OSGP: it has no parameter tau: delay, random
    """
    found, own = find(name), dict(parameters or {})
    known = [key for key in found.parameters if key not in given]
    for key in own.keys() - set(known):
        listed = ", ".join(known) or "it has none of its own"
        raise ValueError(f"algorithm {canonical(name)}: it has no parameter {key}: {listed}")
    taken = {key: value for key, value in given.items() if key in found.parameters}
    for key, p in found.parameters.items():
        by_name = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if by_name and p.default is p.empty and key not in {**taken, **own}:
            raise ValueError(
                f"algorithm {canonical(name)}: it needs {key}: give it among its parameters, or "
                "within a function of lr of your own"
            )
    try:
        made = found.function(**taken, **own)
    except TypeError as error:
        raise ValueError(f"algorithm {name}: {error}") from None
    if not isinstance(made, Algorithm):
        raise ValueError(f"algorithm {name}: returned {type(made).__name__}, expected an Algorithm")
    return made
