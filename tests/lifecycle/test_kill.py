"""A training that is killed again and again is the training that was never killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lifecycles import TRAINED_EPOCHS, NewProcess, loader, records, trained_under_kills
from making import write_samples

KILLS = 100
SAMPLES = 40


@pytest.mark.parametrize(
    ("longest", "seed"),
    [
        (0.8, 0),  # kills come at the start, which takes most of the time, and in the first steps
        (0.7, 1),  # or anywhere
    ],
)
def test_a_training_under_sigkills_at_random_moments_is_the_undisturbed_one(
    tmp_path: Path, longest: float, seed: int
) -> None:
    shards = write_samples(tmp_path / "shards", SAMPLES)
    copies = []
    for copy in range(KILLS + 2):
        (tmp_path / f"shards{copy}").mkdir()
        copies.append([str(shutil.copy2(shard, tmp_path / f"shards{copy}")) for shard in shards])
    with NewProcess() as process:
        runs = process.ask(
            trained_under_kills, tar=copies, folder=str(tmp_path), kills=KILLS // 2, longest=longest, seed=seed
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
    assert len(runs["places"]) > 5  # it was killed after many a different step
