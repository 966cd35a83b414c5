"""The demonstration as a whole: it learns. About half a minute."""

import subprocess
import sys
from pathlib import Path

from PIL import Image


def test_the_demonstration_ends_above_90_percent_and_draws_its_grid(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [
        sys.executable,
        "-c",
        "from gpuloader.cli import main; main()",
        "demo",
        "--cpu",
        "--output",
        str(picture),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[0].split() == ["device", "cpu"]
    accuracy, _, evaluated, *_ = result.stdout.split("test accuracy")[1].split()
    assert float(accuracy.removesuffix("%")) > 90
    assert evaluated == "400"
    assert "epoch 6/6" in result.stderr
    with Image.open(picture) as grid:
        assert grid.size[0] > 1000
        assert len(grid.getcolors(1 << 24)) > 10_000
