"""The table of methods, which needs no torch: a new one is a function and one line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from pushsum import names, own_code

MOREAU = "moreau:k=1,v=0.1"  #: the paper's weights


@dataclass(frozen=True)
class Method:
    """A method by its name.

    Attributes:
        make: the function that makes it, as "module:function" of this package or FILE.py:function.
        about: one line for tables.
        adaptive: whether it takes a weighting.
        momentum: whether it takes momentum.
        weighting: what it has if none is named.
    """

    make: str
    about: str = ""
    adaptive: bool = False
    momentum: bool = False
    weighting: str = "uniform"

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself; this imports torch."""
        if own_code.is_named(self.make):
            made = own_code.load("algorithm", self.make)
            if not callable(made):
                raise ValueError(
                    f"algorithm {self.make}: a method is a function of lr that returns one"
                )
        else:
            module, _, name = self.make.partition(":")
            made = getattr(import_module(f"pushsum.{module}"), name)
        found: Callable[..., Any] = made
        return found

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """What it is made of: lr, and perhaps momentum, weighting and more of its own."""
        return signature(self.function).parameters


#: In the order of tables; the k-th is drawn in the palette's k-th colour.
METHODS: dict[str, Method] = {
    "SGP": Method("algorithms:sgp", "stochastic gradient push"),
    "MSGP": Method("algorithms:msgp", "SGP with momentum", momentum=True),
    "SGAP": Method(
        "algorithms:sgap", "the paper's: SGP with adaptive weights", adaptive=True, weighting=MOREAU
    ),
    "MSGAP": Method(
        "algorithms:msgap", "SGAP with momentum", adaptive=True, momentum=True, weighting=MOREAU
    ),
    "S-ADDOPT": Method(
        "algorithms:s_addopt", "gradient tracking over Push-SUM, which sends two vectors"
    ),
    "QGM": Method("algorithms:qgm", "quasi-global momentum", adaptive=True, momentum=True),
    "AllReduce": Method(
        "algorithms:all_reduce", "centralized SGD, to compare with, without a graph", momentum=True
    ),
    "ADD-OPT": Method("algorithms:add_opt", "gradient tracking: mix, then move"),
    "Push-DIGing": Method("algorithms:push_diging", "gradient tracking: move, then mix"),
    "SONATA": Method("algorithms:sonata", "gradient tracking with surrogates and proximal terms"),
    "DEXTRA": Method("algorithms:dextra", "exact with one vector, for a graph that never changes"),
    "AB": Method("algorithms:ab", "pull x, push the tracker: mix, then move"),
    "Push-Pull": Method("algorithms:push_pull", "pull x, push the tracker: move, then mix"),
    "ABm": Method("algorithms:abm", "AB with heavy-ball momentum"),
    "ABN": Method("algorithms:abn", "AB with Nesterov momentum"),
    "FROST": Method("algorithms:frost", "pull only, for a graph that never changes"),
    "Push-LSVRG-UP": Method("algorithms:push_lsvrg_up", "ADD-OPT with variance reduction"),
    "OSGP": Method("algorithms:osgp", "SGP whose messages arrive late, and nobody waits"),
    "pFedMe": Method("algorithms:pfedme", "personal models by Moreau envelopes"),
    "Ditto": Method("algorithms:ditto", "personal models that are drawn towards the common one"),
}

NAMES = tuple(METHODS)
ADAPTIVE = tuple(name for name, method in METHODS.items() if method.adaptive)
MOMENTUM = tuple(name for name, method in METHODS.items() if method.momentum)


def canonical(name: str) -> str:
    """A method's name as the table has it, whatever its case; a file from the root.

    >>> canonical("s-addopt"), canonical("msgap")
    ('S-ADDOPT', 'MSGAP')
    """
    if own_code.is_named(name):
        return own_code.spelled(name)
    found = names.canonical(name, METHODS)
    if found not in METHODS:
        raise ValueError(f"{names.unknown('algorithm', name, METHODS)}, or FILE.py:function")
    return found


def find(name: str) -> Method:
    """The method of a name, whatever its case, or of FILE.py:function.

    >>> find("s-addopt").about
    'gradient tracking over Push-SUM, which sends two vectors'
    """
    name = canonical(name)
    return METHODS.get(name) or Method(name)


def takes(name: str, parameter: str) -> bool:
    """Whether a method is made of such a parameter; of one's own it is not known, so yes.

    >>> takes("SGAP", "weighting"), takes("SGP", "momentum")
    (True, False)
    """
    return name not in METHODS or parameter in METHODS[name].parameters
