"""Reads the memory and use of a GPU through its driver's own tool."""

from __future__ import annotations

import subprocess
from statistics import mean

_QUERY = "memory.used,utilization.gpu,utilization.jpeg"


class Gauges:
    """Reads the first GPU five times a second while a system runs; reads nothing where there is none."""

    def __init__(self, present: bool) -> None:
        command = ["nvidia-smi", "--id=0", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-lms", "200"]
        self._reading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if present else None

    def stop(self) -> dict[str, float]:
        """The most memory, and the mean use of the multiprocessors and of the JPEG engines in percent."""
        if self._reading is None:
            return {}
        self._reading.terminate()
        output, _ = self._reading.communicate()
        rows = [line.split(", ") for line in output.splitlines() if line.count(",") == 2]
        memory, busy, jpeg = ([float(row[column]) for row in rows if row[column].isdigit()] for column in range(3))
        gauges = {
            "gpu_memory_peak_bytes": max(memory, default=0.0) * 2**20,
            "gpu_busy_percent": mean(busy or [0.0]),
        }
        # Not every driver counts the JPEG engines.
        return gauges | ({"jpeg_engines_percent": mean(jpeg)} if jpeg else {})
