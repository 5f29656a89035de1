"""The bytes of all tensors that live at once: the same number on every machine."""

import weakref
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts what operations allocate within the block, until it is freed; `peak` is the most."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        for tensor in tree_leaves((arguments, named)):
            self._count(tensor, 0)  # it was there before
        answer = operation(*arguments, **(named or {}))
        for tensor in tree_leaves(answer):
            self._count(tensor, 1)
        return answer

    def _count(self, tensor: Any, new: int) -> None:
        if not isinstance(tensor, Tensor):
            return
        storage: UntypedStorage = tensor.untyped_storage()
        key, size = storage._cdata, new * storage.nbytes()
        if key in self._seen:
            return

        def freed(_: Any) -> None:
            del self._seen[key]
            self.bytes -= size

        self._seen[key] = weakref.ref(storage, freed)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
