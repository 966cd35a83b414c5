"""`python plot.py results.json plot.png`: a bar for each system's CPU time, a dot for each round. Needs matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from report import figures

mpl.use("Agg")


def plot(result: dict[str, Any], image: Path) -> None:
    """One row of bars for each recipe, the cheapest at the top."""
    recipes = result["summary"]
    most = max(len(systems) for systems in recipes.values())
    figure, axes = pyplot.subplots(len(recipes), figsize=(9, 0.6 + len(recipes) * (0.9 + 0.3 * most)), squeeze=False)
    for axis, (recipe, systems) in zip(axes[:, 0], recipes.items(), strict=True):
        names = sorted(systems, key=lambda name: -systems[name]["cpu_seconds_per_1000"]["median"])
        costs = [systems[name]["cpu_seconds_per_1000"]["median"] for name in names]
        colours = ["tab:green" if name == "gpuloader" else "silver" for name in names]
        axis.barh([result["systems"][name]["title"] for name in names], costs, color=colours)
        for run in result["rounds"]:
            if run["recipe"] == recipe and run["system"] in names:
                axis.plot(figures(run)["cpu_seconds_per_1000"], names.index(run["system"]), "k.", markersize=3)
        axis.set_title(recipe)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("CPU core-seconds per 1,000 images (less is better)")
    figure.suptitle(f"{result['title']} {result['machine']['cpu']}, {result['date']}".strip(), fontsize=9)
    figure.tight_layout()
    figure.savefig(image, dpi=120)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
