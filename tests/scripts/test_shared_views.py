"""`scripts/examples/shared_views.py`: it trains, with both losses, and the JSD loss is its formula."""

from __future__ import annotations

import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from making import encoded, write_shard
from PIL import Image

EXAMPLE = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "shared_views.py"


@pytest.mark.parametrize(("loss", "views"), [("jsd", 3), ("fixmatch", 2)])
def test_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loss: str, views: int
) -> None:
    colours = [encoded(Image.new("RGB", (40, 40), colour), "JPEG") for colour in ("navy", "orange")]
    samples = [{"__key__": f"{n}", "jpg": colours[n % 2], "cls": b"%d" % (n % 2)} for n in range(64)]
    shard = write_shard(tmp_path / "a.tar", samples)
    options = {"--shards": shard, "--loss": loss, "--classes": 2, "--batch-size": 16, "--size": 32, "--epochs": 8}
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *(str(each) for pair in options.items() for each in pair)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    losses = re.findall(rf"epoch \d: {views} views, {loss} loss (\S+)\n", capsys.readouterr().out)
    assert len(losses) == 8
    assert float(losses[-1]) < math.log(2)  # of guessing, without the second term


def test_the_jsd_loss_is_its_formula() -> None:
    jsd_loss: Any = runpy.run_path(str(EXAMPLE))["jsd_loss"]
    logits = [[[1.0, 2.0, 0.0]], [[0.0, 3.0, 1.0]], [[1.0, 1.0, 1.0]]]
    shares = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for [row] in logits]
    mean = [sum(each) / 3 for each in zip(*shares)]
    apart = [sum(p * math.log(p / m) for p, m in zip(row, mean)) for row in shares]
    expected = -math.log(shares[0][1]) + 12 * sum(apart) / 3
    found = jsd_loss(torch.nn.Identity(), [torch.tensor(each) for each in logits], torch.tensor([1]))
    assert math.isclose(found.item(), expected, rel_tol=1e-5)
