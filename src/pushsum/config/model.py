"""Everything a run depends on, as typed sections. Nothing here is built; `experiment` does that."""

import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pushsum import (
    faults,
    methods,
    models,
    optimizers,
    own_code,
    pretrained,
    topology,
    weighting,
)
from pushsum.batchnorm import BatchNormPolicy
from pushsum.data import is_file
from pushsum.data.sources import SPECS
from pushsum.engines.gradients import Strategy
from pushsum.names import canonical, flat

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


Count = Annotated[int, BeforeValidator(_no_truth_value), Field(ge=1, le=10**15)]
Seed = Annotated[int, BeforeValidator(_no_truth_value), Field(ge=0)]
Location = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


def _spelled(choices: Iterable[str]) -> AfterValidator:
    """A name as the choices have it, whatever its case; of FILE.py:name, the file from the root."""
    return AfterValidator(lambda name: canonical(own_code.spelled(name), choices))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _with_nothing_below_it(cls, content: Any) -> Any:
        return {} if content is None else content


def _from_the_root(name: str) -> str:
    """A file of numbers is found wherever a run goes on."""
    return str(Path(name).expanduser().absolute()) if is_file(name) else name


class Data(_Section):
    """Which samples there are."""

    name: Annotated[str, AfterValidator(_from_the_root), _spelled(SPECS)] = "digits"
    """a data set of `pushsum data list`, an .npz or .csv file, or your own, FILE.py:function"""
    target: str | None = None
    """.csv: the column to predict; whole numbers and words are classes, 3.0 is a number"""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """.csv: the part of the rows that are kept for testing, the same for every seed"""
    standardize: bool = False
    """every feature, and every number to predict, gets mean 0 and deviation 1, by the training
    samples"""
    root: Location | None = None
    """where prepared data sets lie; null: your cache"""
    augment: bool = False
    """random crops and flips of the training images"""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """the fraction of every node's training samples that nobody trains on: to choose by"""


class Split(_Section):
    """Who holds which samples; see pushsum.data.partition."""

    kind: Literal["clusters", "iid", "dirichlet", "shards", "quantity"] = "clusters"
    clusters: Count = 2
    """clusters: so many groups of nodes, each with labels of its own"""
    shared: bool = True
    """clusters: every node holds all samples of its cluster, as the paper has it"""
    alpha: Positive = 0.5
    """dirichlet and quantity: the smaller, the more the nodes differ"""
    per_node: Count = 2
    """shards: how many each node gets"""
    minimum: Count = 1
    """dirichlet and quantity: samples that every node has at least"""


class Model(_Section):
    """The network; see pushsum.models.build for which option goes with which name."""

    name: Annotated[str, _spelled(models.NAMES)] = "mlp"
    """mlp, cnn, resnet-small, resnet18, resnet50, or your own, FILE.py:function"""
    width: Count | None = None
    """cnn, resnets: channels of the first stage; null: the model's own, here and below"""
    blocks: tuple[Count, ...] | None = None
    """resnets: residual blocks of each stage, e.g. [1, 1, 1]"""
    norm: Literal["batch", "frozen", "group"] | None = None
    """resnets; frozen: BatchNorm with the statistics of all training data before step 1"""
    stem: Literal["cifar", "imagenet"] | None = None
    """resnets: for small images, or as for ImageNet"""
    hidden: tuple[Count, ...] | None = None
    """mlp, cnn: sizes of the hidden layers, e.g. [64]"""
    pretrained: Location | None = None
    """weights of `pushsum weights list`, or a .safetensors file with torchvision's names"""
    fresh_last_layer: bool = False
    """the last layer starts differently at every node, as in the published runs"""

    @model_validator(mode="after")
    def _options_of_ours(self) -> "Model":
        options = ("width", "blocks", "norm", "stem", "hidden")
        given = [name for name in options if getattr(self, name) is not None]
        if given and own_code.is_named(self.name):
            raise ValueError(
                f"model.{given[0]} has no effect with a model of your own: write it into the file"
            )
        return self

    @field_validator("pretrained", mode="before")
    @classmethod
    def _of_that_name(cls, given: Any) -> Any:
        return pretrained.find(given) if given in tuple(pretrained.OFFICIAL) else given


class Schedule(_Section):
    """How the step size changes."""

    kind: Literal["constant", "steps", "cosine"] = "constant"
    milestones: tuple[Count, ...] = ()
    """steps: the epochs after which the step size is multiplied by the factor"""
    factor: Positive = 0.1
    """steps: see milestones"""

    @model_validator(mode="after")
    def _milestones_of_steps(self) -> "Schedule":
        if self.milestones and self.kind != "steps":
            raise ValueError(
                "algorithm.schedule.milestones belong to algorithm.schedule.kind=steps"
            )
        return self


Weighting = Annotated[str, AfterValidator(weighting.spelled)]
LENGTH = ("epochs", "steps")  #: what may change when a run goes on


class Algorithm(_Section):
    """The method."""

    name: Annotated[str, AfterValidator(methods.canonical)] = "MSGP"
    """SGP, MSGP, SGAP, MSGAP, S-ADDOPT, QGM (quasi-global momentum), AllReduce (centralized SGD, to
    compare with, without a graph), ADD-OPT, Push-DIGing, SONATA, DEXTRA, AB, Push-Pull, ABm, ABN,
    FROST, Push-LSVRG-UP, OSGP, pFedMe, Ditto, or your own, FILE.py:function"""
    lr: Positive = 0.05
    """step size"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """of MSGP, MSGAP, QGM and AllReduce, where no optimizer is named"""
    every: Count = 1
    """local moves per exchange: with 4, three of four steps send nothing"""
    weighting: Weighting = methods.MOREAU
    """of (M)SGAP, the paper's by default, and QGM, there uniform by default: uniform, lazy:c=0.5,
    moreau:k=1,v=0.1, scale-free-moreau:c=1,v=0.1, far-first:c=1,v=0.1, or your own,
    FILE.py:function"""
    schedule: Schedule = Schedule()
    optimizer: Annotated[str, _spelled(optimizers.kinds())] | None = None
    """a class of torch.optim that computes the local update, instead of (momentum) SGD"""
    options: dict[str, Any] = Field(default_factory=dict)
    """the optimizer's own arguments besides lr"""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """the method's own besides lr, momentum and weighting, e.g. {delay: 2} of OSGP"""

    @model_validator(mode="after")
    def _weighs_as_the_method_does(self) -> "Algorithm":
        if "weighting" not in self.model_fields_set:
            object.__setattr__(self, "weighting", methods.find(self.name).weighting)
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> "Algorithm":
        count, schedule = len(self.schedule.milestones), self.schedule
        if math.log(self.lr) + count * math.log(schedule.factor) > math.log(sys.float_info.max):
            raise ValueError(
                f"algorithm.schedule.factor = {schedule.factor}: after {count} milestones the step "
                "size is beyond all numbers; choose a smaller one"
            )
        if self.options and self.optimizer is None:
            raise ValueError("algorithm.options belong to algorithm.optimizer, which is not set")
        moves = self.optimizer is not None and self.name != "QGM"  # whose momentum is its own
        if moves and "momentum" in self.model_fields_set:
            raise ValueError(
                "algorithm.momentum has no effect with algorithm.optimizer: leave it out, or put "
                "the optimizer's own into algorithm.options"
            )
        return self

    @model_serializer(mode="wrap")
    def _what_has_an_effect(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A saved configuration must be one that can be given."""
        content: dict[str, Any] = dump(self)
        if self.optimizer is not None and self.name != "QGM":
            del content["momentum"]
        return content


class Topology(_Section):
    """Who may send to whom."""

    name: str = "exponential"
    """full, divide, exponential, random or ring (see `pushsum topology`), a .csv or .txt of edges,
    or your own, FILE.py:function"""
    nodes: Count = 6
    """how many there are"""
    inner: Share = 0.5
    """random: the chance of a channel within a half of the nodes"""
    inter: Share = 0.25
    """random: the chance of a channel between the halves"""
    period: Count = 8
    """random: all channels are open every so many steps"""
    seed: Seed | None = None
    """random: of the channels; null: the run's"""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if not topology.is_file(name):
            topology.parse(name, 1)  # refuses a name that it does not know
        return topology.spelled(name)


class Evaluation(_Section):
    """What is measured, and when."""

    every: Positive = 1
    """epochs between two evaluations, e.g. 0.5"""
    batch: Count = 500
    """test samples per pass"""
    batchnorm: BatchNormPolicy = "averaged"
    """which statistics the average model is tested with"""
    recompute_batches: Count = 20
    """recomputed: on how many training batches"""
    nodes: bool = True
    """also test every node's own y"""


def _named(value: Any) -> Any:
    """Links and nodes are keys, and keys are text."""
    return {str(key): v for key, v in value.items()} if isinstance(value, dict) else value


Each = Annotated[dict[str, float], BeforeValidator(_named)]
Times = str | tuple[str, ...]


class Link(_Section):
    """The network between the nodes; its time is modelled."""

    wire: Literal["float32", "bfloat16", "float16"] | None = None
    """the dtype that parameters travel in; null: their own"""
    gigabits: Positive = 1.0
    """per second and channel"""
    latency: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """seconds a message is under way at least"""
    overlap: bool = True
    """weights are computed while parameters are on the wire; the published runs did not"""
    uneven: Each = Field(default_factory=dict)
    """nodes or links with another bandwidth, in parts of gigabits: {3: 0.1, 0->1: 0.5}"""
    far: Each = Field(default_factory=dict)
    """nodes or links with another latency, in seconds: {3: 0.05, 0->1: 0.2}"""

    @model_validator(mode="after")
    def _is_of_links(self) -> "Link":
        self.values()
        return self

    def values(self) -> tuple[faults.Values, faults.Values]:
        """Gigabits per second, in parts of `gigabits`, and latency in seconds."""
        share = faults.Values.of("link.uneven", self.uneven, 1e-6, 1e6, default=1.0)
        most = sys.float_info.max
        return share, faults.Values.of("link.far", self.far, 0, most, default=self.latency)


class Faults(_Section):
    """What fails, in simulation; see pushsum.faults. Steps are exchanges."""

    preset: str | None = None
    """lan, wifi, wan, mobile, spot-instances or volunteers, besides what stands below"""
    trace: Location | None = None
    """a .csv of events: step,event,node,to,value"""
    seed: Seed | None = None
    """of what happens by chance; null: the run's"""
    loss: float | Each = 0.0
    """the probability that a message is lost; of links or senders: {0->1: 0.5, 2: 0.1}"""
    burst: Count = 1
    """so many consecutive messages of a link are lost together"""
    delay: int | Each = 0
    """every message takes 0 .. D steps more"""
    partition: Times = ()
    """when nodes are cut off from the others: 0+1+2@100-160"""
    crash: Times = ()
    """when nodes crash, and join again: 2@100-200"""
    leave: Times = ()
    """when nodes give away all they have and leave"""
    join: Times = ()
    """when nodes join that are not there from the start: 5@50"""
    churn: tuple[Count, Count] | None = None
    """[every, down]: every node crashes once in so many steps, for so many"""
    mode: Literal["lose", "pause"] = "lose"
    """whether a crash loses what the node had"""
    sleep: float | Each | Times = 0.0
    """the probability that a node sleeps through a step, or when nodes sleep: 3@100-1100"""
    straggler: Each = Field(default_factory=dict)
    """nodes that are slower than the others, and how many times: {3: 5}"""
    wait: bool = False
    """the others wait for stragglers, which then cost time and no steps"""
    accounting: faults.Accounting = "keep"
    """keep: senders keep what is lost; outbox: parcels acknowledged; none: plain Push-SUM"""
    hold: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """a node with less than this part of the mean a gives nothing; 0: everybody gives"""
    reset: Count | None = 1
    """so many steps after a node was lost, trackers start anew; null: never"""
    catch_up: Count = 1
    """moves are scaled by the steps that a node's clock has advanced, up to so many"""

    @model_validator(mode="after")
    def _is_a_plan(self) -> "Faults":
        self.plan(0)
        return self

    def plan(self, seed: int) -> faults.Plan:
        """The plan; an empty one if nothing fails."""
        given = self.model_dump(exclude_defaults=True)
        seed, preset = given.pop("seed", seed), given.pop("preset", None)
        trace = given.pop("trace", None)
        if preset is not None:
            given = faults.preset_of(preset) | given
        made = faults.plan(seed, **given)
        if trace is not None:
            made |= faults.trace(trace)
        return made


class Published(_Section):
    """What the published runs did and the paper does not say; see docs/published.md."""

    restart: bool = False
    """at a milestone a, x, momentum and buffers start anew"""
    test_before: bool = False
    """evaluate before each epoch, so that the last row is one epoch short"""
    average_of_y: bool = False
    """test the mean of y, not of x"""
    same_batches: bool = False
    """all nodes of a cluster see the same batches, in the same order in every epoch"""
    per_receiver: bool = False
    """random: one draw per receiver; the open step is the first of a period"""


class Config(_Section):
    """Everything a run depends on."""

    seed: Seed = 0
    """of everything that is random"""
    epochs: Count = 10
    """each of (mean number of samples of a node) / batch steps, the same for all nodes"""
    steps: Count | None = None
    """stop after so many steps, unless the epochs are over before"""
    batch: Count = 32
    """samples per node and step"""
    data: Data = Data()
    split: Split = Split()
    model: Model = Model()
    loss: Annotated[str, AfterValidator(own_code.spelled)] | None = None
    """cross-entropy, mse, or your own, FILE.py:function; null: the first for labels, the second for
    floats"""
    algorithm: Algorithm = Algorithm()
    topology: Topology = Topology()
    evaluation: Evaluation = Evaluation()
    link: Link = Link()
    faults: Faults = Faults()
    published: Published = Published()
    gradients: Strategy | Literal["auto"] = "auto"
    """how the gradients are computed, equal to rounding; auto: the fastest, measured at the start
    and from then on the run's"""
    device: str = "auto"
    """auto: CUDA where there is one"""
    checkpoint: Count = 1
    """epochs between two checkpoints"""
    _trusted: Literal[True] | frozenset[str] = PrivateAttr(frozenset())  # of what may be run

    @property
    def values(self) -> dict[str, Any]:
        """Of all dotted keys, as a file would hold them."""
        return flat(self.model_dump(mode="json"))

    def refuse_untrusted(self) -> None:
        """ValueError if it names a file to run that the user has not trusted."""
        own_code.refuse_untrusted(self.values, self._trusted)

    @model_validator(mode="after")
    def _restarts_have_a_time(self) -> "Config":
        if self.published.restart and not self.algorithm.schedule.milestones:
            raise ValueError(
                "published.restart has no effect without algorithm.schedule.milestones: "
                "name the epochs after which to start anew"
            )
        if self.published.restart and not self.faults.plan(0).empty:
            raise ValueError("published.restart has no faults: leave one of them out")
        return self


def warnings(config: Config) -> list[str]:
    """What is allowed, but probably not meant."""
    config.refuse_untrusted()
    found = []
    model, algorithm, place = config.model, config.algorithm, config.topology
    if model.stem == "imagenet" and model.fresh_last_layer and model.pretrained is None:
        found.append(
            f"{model.name} starts from random numbers, where the published runs had ImageNet "
            "weights: name some of `pushsum weights list`, or model.pretrained=FILE.safetensors"
        )
    if model.pretrained is not None and model.norm != "frozen":
        statistics = pretrained.about(model.pretrained).get("statistics")
        if statistics and config.evaluation.batchnorm == "averaged":
            found.append(
                f"{model.pretrained.name}: BatchNorm's running statistics are of {statistics}: "
                "test with evaluation.batchnorm=recomputed"
            )
    if methods.takes(algorithm.name, "weighting"):
        with suppress(ValueError):  # what is wrong with a run is said when it is built
            graphs = topology.parse(place.name, place.nodes)
            found += weighting.warnings(weighting.parse(algorithm.weighting), graphs)
    elif algorithm.weighting != "uniform":
        found.append(
            f"algorithm.weighting = {algorithm.weighting} has no effect with {algorithm.name}: "
            f"take one of {', '.join(methods.ADAPTIVE)}"
        )
    return found
