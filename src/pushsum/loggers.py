"""Where records go besides `records.jsonl`: one small protocol, and three services that speak it.

To add one of your own, write a class with the three methods of `Logger`, made of the run's
directory, and name it: `pushsum run --log FILE.py:name`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

from pushsum import files, own_code
from pushsum.names import canonical, flat, unknown


class Logger(Protocol):
    """What is told of a run, in the process of its first node."""

    def on_start(self, config: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """The run begins or goes on; the directory is its own."""

    def on_record(self, step: int, record: Mapping[str, Any]) -> None:
        """What it has reached; after resuming, steps may be told again."""

    def on_end(self, finished: bool) -> None:
        """It has ended, or was stopped."""


class TensorBoard:
    """Scalars under `directory`/tensorboard, one tag per number."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.make: Callable[..., Any] = SummaryWriter
        self.directory = directory / "tensorboard"
        self.writer: Any = None

    def on_start(self, config: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        pass

    def on_record(self, step: int, record: Mapping[str, Any]) -> None:
        if self.writer is None:  # what an earlier run says of later steps is void
            self.writer = self.make(str(self.directory), purge_step=step)
        for tag, value in numbers(record):
            self.writer.add_scalar(tag, value, step)
        self.writer.flush()

    def on_end(self, finished: bool) -> None:
        if self.writer is not None:
            self.writer.close()


class WandB:
    """A run of Weights & Biases, whose settings are its environment variables (WANDB_MODE, ...)."""

    def __init__(self, directory: Path) -> None:
        import wandb

        self.wandb: Any = wandb
        self.directory = directory
        self.run: Any = None

    def on_start(self, config: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "pushsum"),
            name=self.directory.name,
            dir=str(self.directory),
            config={**config, "meta": dict(meta)},
            id=_remembered(self.directory, "wandb", lambda: token_hex(8)),
            resume="allow",
        )
        # theirs may only grow, ours may be told again
        self.run.define_metric("*", step_metric="step")

    def on_record(self, step: int, record: Mapping[str, Any]) -> None:
        self.run.log({"step": step, **dict(numbers(record))})

    def on_end(self, finished: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says, or where MLflow keeps runs otherwise."""

    def __init__(self, directory: Path) -> None:
        from mlflow import MlflowClient

        self.directory, self.id = directory, ""
        self.client: Any = MlflowClient()

    def on_start(self, config: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        def begun() -> str:
            run: str = self.client.create_run("0", run_name=self.directory.name).info.run_id
            for key, value in flat(config).items():  # they stay as they are
                self.client.log_param(run, key, value)
            return run

        self.id = _remembered(self.directory, "mlflow", begun)
        self.client.update_run(self.id, status="RUNNING")

    def on_record(self, step: int, record: Mapping[str, Any]) -> None:
        for key, value in numbers(record):
            self.client.log_metric(self.id, key, value, step=step)

    def on_end(self, finished: bool) -> None:
        if self.id:
            self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


#: (directory) -> a logger; the name is also that of the extra that it needs.
LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def logger(name: str, directory: Path) -> Logger:
    """The logger of that name, or of FILE.py:name, for the run in a directory."""
    if own_code.is_named(name):
        made: Logger = own_code.load("--log", name)(directory)
        return made
    found = canonical(name, LOGGERS)
    if found not in LOGGERS:
        raise ValueError(f"{unknown('logger', name, LOGGERS)}, or FILE.py:name")
    try:
        return LOGGERS[found](directory)
    except ImportError:
        raise ValueError(
            f"--log {found} needs the extra: pip install -c constraints.txt '.[{found}]'"
        ) from None


def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record, under names such as test/accuracy.

    >>> list(numbers({"step": 2, "test": {"accuracy": 0.5}, "nodes": None}))
    [('test/accuracy', 0.5)]
    """
    for key, value in flat(record).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step":
            yield key.replace(".", "/"), value


def _remembered(directory: Path, service: str, make: Callable[[], str]) -> str:
    """The name that a service knows a run by, so that one that goes on is the same there."""
    path = directory / f".{service}-run"
    if not path.exists():
        files.write(path, make().encode())
    return files.content(path, 200).decode()
