"""One process per node, launched by `torchrun`: the only place that knows torch.distributed."""
