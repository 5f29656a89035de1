"""Networks by name: ResNets and their narrow versions, a small CNN, an MLP.

Every model is a plain `nn.Module` that keeps all state in named parameters and buffers, so that
one module serves n nodes: `torch.func.functional_call` with row i of the stacked state is node i,
and `torch.func.vmap` over the leading axis is all of them. A forward pass in training mode
updates the stacked BatchNorm buffers it was given in place, under vmap too; the momentum is a
number (0.1), so `num_batches_tracked` counts along and nothing reads it.

ResNets carry torchvision's names (`layer1.0.conv1.weight`, ..., `fc.bias`), and every model calls
its last layer `fc`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import Any, Literal, final, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pushsum import files
from pushsum.batchnorm import FrozenBatchNorm2d
from pushsum.names import canonical, one_line, unknown
from pushsum.networks import NETWORKS

Norm = Literal["batch", "frozen", "group"]
Stem = Literal["cifar", "imagenet"]
NormLayer = Callable[[int], nn.Module]  #: channels -> normalization

HEAD = "fc"  #: the last layer, the only one that depends on the number of classes
_HEAD_NAMES = (f"{HEAD}.weight", f"{HEAD}.bias")
MAX_STAGES = 4  #: torchvision's names end at layer4, and each stage doubles the width
MAX_LAYERS = 1000  #: hidden ones, or residual blocks
MAX_GROUPS = 32  #: of GroupNorm, for width 64 and above

NAMES = tuple(NETWORKS)  #: the models that `build` knows


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int | None = None,
    blocks: tuple[int, ...] | None = None,
    norm: Norm | None = None,
    stem: Stem | None = None,
    hidden: tuple[int, ...] | None = None,
    generator: torch.Generator | None = None,
    shapes_only: bool = False,
) -> nn.Module:
    """The model `name` for inputs (b, *shape), in training mode, on the CPU.

    | name | is | options and their defaults |
    |---|---|---|
    | resnet18 | basic blocks | width 64, blocks (2, 2, 2, 2), norm batch, stem cifar |
    | resnet50 | bottlenecks, stride at the 3x3 | width 64, blocks (3, 4, 6, 3), norm, stem |
    | resnet-small | basic blocks | width 16, blocks (1, 1, 1), norm, stem |
    | cnn | 2 x (3x3 convolution, pool), linear | width 16, hidden (64,) |
    | mlp | linear layers | hidden (64,) |

    Convolutions start from He's normal distribution (fan out, ReLU) with bias 0, linear layers
    from U(-1, 1) / sqrt(inputs) as in torch, norms from 1 and 0. The last norm of a residual
    branch starts from 1 as well, not from 0 as in some recipes: as in torchvision by default.

    Args:
        name: one of `NAMES`.
        shape: of one input: (channels, height, width); the mlp takes any.
        classes: outputs of the last layer.
        width: channels of the first stage; every further stage has twice as many.
        blocks: residual blocks of each of one to four stages.
        norm: "batch"; "frozen", BatchNorm whose statistics stay; or "group" with 32 groups, for
            narrow networks width / 2 (if that divides the width, else the next smaller number that
            does).
        stem: "cifar" (3x3 convolution) or "imagenet" (7x7 with stride 2, then 3x3 max-pool with
            stride 2).
        hidden: sizes of the hidden linear layers; () leaves the last layer alone.
        generator: on the CPU; the parameters are a pure function of its state. None: one seeded
            with 0. The global random state is neither read nor moved.
        shapes_only: on the meta device, where the largest model takes no memory.

    >>> model = build("resnet-small", (3, 32, 32), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    78042
    """
    name = canonical(name, NAMES)
    if name not in NAMES:
        raise ValueError(unknown("model", name, NAMES))
    given = {"width": width, "blocks": blocks, "norm": norm, "stem": stem, "hidden": hidden}
    options = _options(name, {key: value for key, value in given.items() if value is not None})
    _check_sizes("classes", (classes,))
    _check_sizes("shape", shape)
    if name != "mlp" and len(shape) != 3:
        raise ValueError(f"shape = {shape!r}: {name} takes images, (channels, height, width)")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    if generator.device.type != "cpu":
        raise ValueError(f"generator lives on {generator.device}: give a CPU one, move the model")
    try:
        with torch.device("meta"):  # no memory, no random numbers for torch's own initialization
            model = _MAKERS[name](shape, classes, **options)
        if shapes_only:
            return model
        model = model.to_empty(device="cpu")
    except (RuntimeError, OverflowError, TypeError):  # TypeError: a size of more than 64 bits
        raise ValueError(f"{name} with {options} and shape {shape} is too large") from None
    _initialize(model, generator)
    return model


def load_pretrained(
    model: nn.Module, path: Path, fresh_last_layer: bool = False
) -> tuple[str, ...]:
    """Load a safetensors file of torchvision-named weights into `model`; say what stays fresh.

    Everything is loaded, except that a last layer with another number of classes, or any if
    `fresh_last_layer`, stays as it is: its names are returned. The file may leave out BatchNorm's
    `num_batches_tracked`, as old torchvision files do. A file that does not fit is refused before
    anything is written.
    """
    found = read_safetensors(path)
    state = model.state_dict()
    fresh, fault = compared(state, found, fresh_last_layer)
    if fault:
        raise ValueError(
            f"{path} {fault}: nothing was loaded; build the model with the stem, width, blocks and "
            "norm that the file was made for"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            if name in found and name not in fresh:
                tensor.copy_(found[name])
    return fresh


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        with files.opened(path), safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except RuntimeError as error:  # torch's, of a file that is larger than memory
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a safetensors file ({error}); a state dictionary (.pth) is converted "
            "by `pushsum weights prepare NAME --from FILE.pth`"
        ) from None


def compared(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], fresh_last_layer: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """A model's state beside one to load: what would stay fresh, and the first fault, if any."""
    fresh = _HEAD_NAMES if fresh_last_layer or _other_classes(wanted, found) else ()
    wanted = {name: t for name, t in wanted.items() if name not in fresh}
    both = [(name, t, found[name]) for name, t in wanted.items() if name in found]
    counts = ".num_batches_tracked"
    faults = {
        "lacks": [n for n in wanted if n not in found and not n.endswith(counts)],
        "has, and the model has not,": [n for n in found if n not in wanted and n not in fresh],
        "has another shape for": [
            f"{n} {tuple(f.shape)} (the model's is {tuple(t.shape)})"
            for n, t, f in both
            if f.shape != t.shape
        ],
        "has another kind of number for": [
            f"{n} ({f.dtype})"
            for n, t, f in both
            if f.is_floating_point() != t.is_floating_point() and not n.endswith(counts)
        ],
        "has NaN or infinity in": [n for n, _, f in both if not f.float().isfinite().all()],
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - 3} more" * (len(names) > 3)
            return fresh, f"{fault} {', '.join(names[:3])}{more}"
    return fresh, None


def _other_classes(model: Mapping[str, Tensor], file: Mapping[str, Tensor]) -> bool:
    """Whether both have a last layer, for the same inputs, and the numbers of outputs differ."""
    if any(n not in state for n in _HEAD_NAMES for state in (model, file)):
        return False
    (ours, _), (weight, bias) = ([s[n].shape for n in _HEAD_NAMES] for s in (model, file))
    return len(weight) == 2 and bias == weight[:1] and weight[1] == ours[1] and weight[0] != ours[0]


# --------------------------------------------------------------------------- the networks


@final
class Residual(nn.Module):
    """relu(shortcut(x) + ... bn2(conv2(relu(bn1(conv1(x)))))); relu between, not after the last."""

    def __init__(self, inputs: int, units: Sequence[tuple[int, int, int]], norm: NormLayer) -> None:
        """`units`: outputs, size of the kernel and stride of each convolution."""
        super().__init__()
        before = inputs
        for k, (self.outputs, kernel, stride) in enumerate(units, 1):
            setattr(self, f"conv{k}", Convolution(before, self.outputs, kernel, stride))
            setattr(self, f"bn{k}", norm(self.outputs))
            before = self.outputs
        self.count, self.relu = len(units), nn.ReLU(inplace=True)
        stride = prod(stride for *_, stride in units)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != self.outputs:
            self.downsample = nn.Sequential(
                Convolution(inputs, self.outputs, 1, stride), norm(before)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(b, inputs, h, w) -> (b, outputs, h / stride, w / stride)."""
        y = x
        for k in range(1, self.count + 1):
            y = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(y))
            y = self.relu(y) if k < self.count else y
        y += x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(y)
        return out


@final
class Convolution(nn.Conv2d):
    """Without bias; where it leaves one pixel, a linear map of the pixels under the kernel.

    ImageNet's stem makes single pixels of 32x32 images: eight of the nine taps of a 3x3 kernel then
    lie on the padding, and computing them took 40 % of a gradient of ResNet-18 (AVX2, one thread).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        """A square kernel, its middle on the pixels of the image."""
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, inputs, h, w) -> (b, outputs, ceil(h / stride), ceil(w / stride))."""
        if max(x.shape[-2:]) > self.stride[0]:
            return super().forward(x)
        first, size = self.kernel_size[0] // 2, (self.kernel_size[0] + 1) // 2
        seen = x[..., :size, :size]
        taps = self.weight[..., first : first + seen.shape[-2], first : first + seen.shape[-1]]
        return nn.functional.linear(seen.flatten(1), taps.flatten(1))[..., None, None]


def basic_block(inputs: int, width: int, stride: int, norm: NormLayer) -> Residual:
    """Two 3x3 convolutions, the first with the stride."""
    return Residual(inputs, [(width, 3, stride), (width, 3, 1)], norm)


def bottleneck(inputs: int, width: int, stride: int, norm: NormLayer) -> Residual:
    """1x1 to `width` channels, 3x3 with the stride, 1x1 to 4 `width`."""
    return Residual(inputs, [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)], norm)


def _resnet(
    block: Callable[[int, int, int, NormLayer], Residual],
    shape: Sequence[int],
    classes: int,
    width: int,
    blocks: Sequence[int],
    norm: Norm,
    stem: Stem,
) -> nn.Module:
    layer = _norm_layer(norm, width)
    imagenet = stem == "imagenet"
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=Convolution(shape[0], width, 7, 2) if imagenet else Convolution(shape[0], width, 3),
        bn1=layer(width),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, padding=1) if imagenet else nn.Identity(),
    )
    inputs = width
    for stage, count in enumerate(blocks):
        part = nn.Sequential()
        for i in range(count):
            made = block(inputs, width << stage, 2 if stage > 0 and i == 0 else 1, layer)
            part.append(made)
            inputs = made.outputs
        parts[f"layer{stage + 1}"] = part
    parts |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    parts[HEAD] = nn.Linear(inputs, classes)
    return nn.Sequential(parts)


def _cnn(shape: tuple[int, ...], classes: int, width: int, hidden: Sequence[int]) -> nn.Module:
    channels, height, breadth = shape
    if min(height, breadth) < 4:
        raise ValueError(f"shape = {shape!r}: the cnn halves its input twice, it needs 4x4 pixels")
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (inputs, outputs) in enumerate(((channels, width), (width, 2 * width)), 1):
        parts[f"conv{i}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        parts[f"relu{i}"] = nn.ReLU(inplace=True)
        parts[f"pool{i}"] = nn.MaxPool2d(2)
    parts |= _linear_layers(2 * width * (height // 4) * (breadth // 4), hidden, classes)
    return nn.Sequential(parts)


def _mlp(shape: tuple[int, ...], classes: int, hidden: Sequence[int]) -> nn.Module:
    return nn.Sequential(_linear_layers(prod(shape), hidden, classes))


def _linear_layers(inputs: int, hidden: Sequence[int], classes: int) -> OrderedDict[str, nn.Module]:
    parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, size in enumerate(hidden, 1):
        parts[f"hidden{i}"] = nn.Linear(inputs, size)
        parts[f"activation{i}"] = nn.ReLU(inplace=True)
        inputs = size
    parts[HEAD] = nn.Linear(inputs, classes)
    return parts


def _norm_layer(norm: Norm, width: int) -> NormLayer:
    """For a ResNet whose every number of channels is a multiple of `width`.

    All its GroupNorms have the same number of groups, so that a narrow network has as many
    channels in a group as the full one, 2 in the first stage and 16 in the fourth. One for each
    channel would make a stage that has come down to a single pixel constant.
    """
    if norm == "batch":
        return nn.BatchNorm2d
    if norm == "frozen":
        return FrozenBatchNorm2d
    most = min(MAX_GROUPS, max(1, width // 2))
    return partial(nn.GroupNorm, next(g for g in range(most, 0, -1) if width % g == 0))


_MAKERS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": partial(_resnet, basic_block),
    "resnet50": partial(_resnet, bottleneck),
    "resnet-small": partial(_resnet, basic_block),
    "cnn": _cnn,
    "mlp": _mlp,
}


def _initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter and buffer of a module made of the layers above."""
    for layer in model.modules():
        match layer:
            case nn.Conv2d():
                nn.init.kaiming_normal_(
                    layer.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            case nn.Linear():
                bound = 1 / sqrt(layer.in_features)
                nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
            case nn.BatchNorm2d() | nn.GroupNorm():
                layer.reset_parameters()  # 1 and 0: nothing random
            case _:
                assert not list(layer.parameters(recurse=False)), layer


# --------------------------------------------------------------------------- at the door


def _options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a network is built with: the usual, and what was given instead."""
    for option, value in given.items():
        if option not in NETWORKS[name]:
            raise ValueError(
                f"{option} = {value!r}: the model {name} has no such option; "
                f"it has {', '.join(NETWORKS[name])}"
            )
        if option in _CHOICES:
            if value not in _CHOICES[option]:
                raise ValueError(unknown(option, value, _CHOICES[option]))
        else:
            _check_sizes(option, (value,) if option == "width" else value)
        layers = sum(value) if option == "blocks" else len(value) if option == "hidden" else 0
        if layers > MAX_LAYERS:
            raise ValueError(f"{option}: more than {MAX_LAYERS} in all are refused: choose fewer")
        if option == "blocks" and not 1 <= len(value) <= MAX_STAGES:
            raise ValueError(f"blocks = {value!r}: one to {MAX_STAGES} stages, e.g. (2, 2, 2, 2)")
    return {**NETWORKS[name], **given}


_CHOICES = {"norm": get_args(Norm), "stem": get_args(Stem)}


def _check_sizes(option: str, sizes: object) -> None:
    whole = isinstance(sizes, tuple | list) and all(type(s) is int and s >= 1 for s in sizes)
    if not whole:
        raise ValueError(f"{option} = {sizes!r}: integers >= 1 are expected, e.g. (64, 32)")
