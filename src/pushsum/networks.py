"""The table of networks, which needs no torch."""

from collections.abc import Mapping
from typing import Any

#: With their options, and what null stands for.
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "resnet18": {"width": 64, "blocks": (2, 2, 2, 2), "norm": "batch", "stem": "cifar"},
    "resnet50": {"width": 64, "blocks": (3, 4, 6, 3), "norm": "batch", "stem": "cifar"},
    "resnet-small": {"width": 16, "blocks": (1, 1, 1), "norm": "batch", "stem": "cifar"},
    "cnn": {"width": 16, "hidden": (64,)},
    "mlp": {"hidden": (64,)},
}
