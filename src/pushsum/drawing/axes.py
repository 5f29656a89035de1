"""Axes: the range that values span, and the round numbers marked on it."""

from math import ceil, floor, log10


def axis(
    values: list[float], log: bool, padding: float
) -> tuple[tuple[float, float], list[tuple[float, str]]]:
    """The range of an axis and its ticks; `values` are logarithms where `log`, and so are they."""
    if not values:
        return (0, 1), []
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if high - low <= (0.05 if log else max(1e-9 * size, 1e-290)):  # all but constant
        around = 0.5 if log else 0.1 * size if size > 1e-280 else 1
        low, high = low - around, high + around
    margin = padding * (high - low)
    low, high = low - margin, high + margin
    return (low, high), _log_ticks(low, high) if log else _linear_ticks(low, high)


def _linear_ticks(low: float, high: float, shift: int = 0) -> list[tuple[float, str]]:
    """Multiples of 1, 2 or 5 times a power of ten; labels in units of 10^shift."""
    step = round_up((high - low) / 7)
    top = _exponent(max(abs(low), abs(high)))
    decimals = max(0, top - _exponent(step))
    ticks = [k * step for k in range(ceil(low / step - 1e-6), floor(high / step + 1e-6) + 1)]
    return [(tick, _label(tick / 10.0**top, decimals, top + shift)) for tick in ticks]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten where there are two or more of them, else rounder numbers in between."""
    base = floor(low)
    if high - low >= 2:
        step = max(1, round(round_up((high - low) / 7)))
        return [(k, _power(k)) for k in range(ceil(low / step) * step, floor(high) + 1, step)]
    if high - low >= 1:
        ticks = [(e + log10(m), _label(m, 0, e)) for e in range(base, base + 4) for m in (1, 2, 5)]
        return [(tick, label) for tick, label in ticks if low <= tick <= high]
    linear = _linear_ticks(10 ** (low - base), 10 ** (high - base), base)
    return [
        (base + log10(tick), label) for tick, label in linear if low <= base + log10(tick) <= high
    ]


def round_up(step: float) -> float:
    """The next of ..., 0.5, 1, 2, 5, 10, ..."""
    unit = 10.0 ** _exponent(step)
    return next(m * unit for m in (1, 2, 5, 10) if m * unit >= step * (1 - 1e-9))


def _exponent(value: float) -> int:
    return floor(log10(value) + 1e-9)


def _label(mantissa: float, decimals: int, exponent: int) -> str:
    """mantissa * 10^exponent, to as many decimals of the mantissa, as SVG text."""
    if mantissa == 0:
        return "0"
    if -3 <= exponent <= 5:
        return f"{mantissa * 10.0**exponent:.{max(0, decimals - exponent)}f}".replace("-", "−")
    if mantissa == 1 and decimals == 0:
        return _power(exponent)
    return f"{mantissa:.{decimals}f}".replace("-", "−") + "×" + _power(exponent)


def _power(exponent: int) -> str:
    sign = "−" if exponent < 0 else ""
    return f'10<tspan dy="-4" font-size="8">{sign}{abs(exponent)}</tspan>'
