"""`python plot.py results.json plot.png`: the CPU time of each system, a dot for each round. Needs matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.figure import Figure
from report import figures

mpl.use("Agg")


def plot(result: dict[str, Any]) -> Figure:
    """For each recipe a bar for each system, the cheapest at the top; below them the floors, as lines through all."""
    recipes = result["summary"]
    most = max(len(systems) for systems in recipes.values())
    figure, axes = pyplot.subplots(len(recipes), figsize=(9, 0.6 + len(recipes) * (0.9 + 0.3 * most)), squeeze=False)
    for axis, (recipe, systems) in zip(axes[:, 0], recipes.items(), strict=True):
        titles = {name: result["systems"][name]["title"] for name in systems}
        floors = {name for name in systems if titles[name].startswith("floor: ")}
        costs = {name: systems[name]["cpu_seconds_per_1000"]["median"] for name in systems}
        names = sorted(systems, key=lambda name: (name not in floors, -costs[name]))
        for row, name in enumerate(names):
            if name in floors:
                line = axis.plot([costs[name]] * 2, [row, len(names) - 0.5], ":", color="dimgray", linewidth=1)
                line[0].set(marker="|", markersize=14, markevery=[0], label=titles[name])
            else:
                axis.barh(row, costs[name], color="tab:green" if name.partition("-")[0] == "gpuloader" else "silver")
            runs = [run for run in result["rounds"] if (run["recipe"], run["system"]) == (recipe, name)]
            dots = [figures(run)["cpu_seconds_per_1000"] for run in runs]
            axis.plot(dots, [row] * len(dots), "k.", markersize=3)
        axis.set_yticks(range(len(names)), [titles[name] for name in names])
        for name, label in zip(names, axis.get_yticklabels()):
            label.set(color="dimgray" if name in floors else "black", style="italic" if name in floors else "normal")
        axis.set_title(recipe)
        axis.set_xlim(left=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("CPU core-seconds per 1,000 images (less is better)")
    about = ", ".join(filter(None, (result["title"], result["machine"]["cpu"], result["date"])))
    figure.suptitle(about, fontsize=9)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text())).savefig(sys.argv[2], dpi=120)
