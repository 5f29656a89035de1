"""The study behind the evidence pages: sweeps, what they found, and the pages' numbers.

make study    runs what is missing (hours), collects and publishes
"""

from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
