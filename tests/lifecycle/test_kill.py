"""A training that is killed again and again is the training that was never killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lifecycles import TRAINED_EPOCHS, NewProcess, loader, records, trained_under_kills
from making import write_samples

KILLS = 100
SAMPLES = 40


@pytest.mark.slow(kept=1, of="whole programs")
@pytest.mark.parametrize(("steps", "seed"), [(0, 0), (6, 1)], ids=["at the start", "in the steps"])
def test_a_training_under_sigkills_at_random_moments_is_the_undisturbed_one(
    tmp_path: Path, steps: int, seed: int
) -> None:
    shards = write_samples(tmp_path / "shards", SAMPLES)
    copies = []
    for copy in range(KILLS + 2):
        (tmp_path / f"shards{copy}").mkdir()
        copies.append([str(shutil.copy2(shard, tmp_path / f"shards{copy}")) for shard in shards])
    with NewProcess() as process:
        runs = process.ask(
            trained_under_kills, tar=copies, folder=str(tmp_path), kills=KILLS // 2, steps=steps, seed=seed
        )
    with loader(shards, 2) as batches:
        undisturbed = "".join(
            f"{epoch} {record}\n" for epoch in range(TRAINED_EPOCHS) for batch in batches for record in records(batch)
        )
    assert undisturbed.count("\n") == TRAINED_EPOCHS * SAMPLES
    for record in runs["records"]:
        assert record == undisturbed
    assert sum(runs["kills"]) == KILLS // 2
    assert runs["kills"][0] == 0
    assert not steps or len(runs["places"]) > 5  # it was killed after many a different step
