"""What models are measured by, and what tables call it."""

from typing import Any, NamedTuple

_SHORT = {"accuracy": "Acc", "loss": "Loss", "r2": "R²", "perplexity": "Perplexity"}


class Measure(NamedTuple):
    """A number that a test gives."""

    name: str
    higher_is_better: bool
    percent: bool = False

    @property
    def better(self) -> int:
        """1 if more is better, -1 if less is."""
        return 1 if self.higher_is_better else -1

    @property
    def scale(self) -> int:
        """By what values are multiplied to be shown."""
        return 100 if self.percent else 1

    @property
    def head(self) -> str:
        """Of a row or a column."""
        return _SHORT.get(self.name, self.name) + " (%)" * self.percent

    @property
    def words(self) -> str:
        """Within a sentence.

        >>> ACCURACY.words, LOSS.words, R2.words
        ('accuracy (%)', 'loss', 'R²')
        """
        return {"r2": "R²"}.get(self.name, self.name) + " (%)" * self.percent

    def shown(self, value: float | None) -> str:
        """To be read by people.

        >>> ACCURACY.shown(0.955), R2.shown(0.955)
        ('95.50 %', '0.9550')
        """
        if value is None:
            return "–"
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4f}"


ACCURACY = Measure("accuracy", higher_is_better=True, percent=True)
LOSS = Measure("loss", higher_is_better=False)
R2 = Measure("r2", higher_is_better=True)
PERPLEXITY = Measure("perplexity", higher_is_better=False)
_BY_NAME = {measure.name: measure for measure in (ACCURACY, LOSS, R2, PERPLEXITY)}


def told(found: Any) -> Measure:
    """What a run's meta.json names as its `measure`; those that name none are of labels.

    >>> told({"name": "r2"}).head, told(None).head
    ('R²', 'Acc (%)')
    """
    name = found.get("name") if isinstance(found, dict) else None
    return _BY_NAME.get(str(name), ACCURACY)
