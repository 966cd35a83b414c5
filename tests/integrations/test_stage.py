"""The block of docs/trainers.md over a Hugging Face dataset, which needs the package `datasets`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from making import jpeg

PAGE = Path(__file__).resolve().parents[2] / "docs/trainers.md"


def test_the_block_over_a_dataset_gives_all_of_its_images(tmp_path: Path) -> None:
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed; scripts/test_integrations installs it"
    )
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = [{"image": {"bytes": jpeg(40, 60, seed), "path": None}, "label": seed} for seed in range(70)]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "pictures"))
    [block] = re.findall(r"^```py\n(import datasets\n.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    batches = ["(64, 3, 224, 224) 64 64", "(6, 3, 224, 224) 6 6"]
    assert done.stdout.splitlines() == [f"{epoch} {batch}" for epoch in range(2) for batch in batches]
