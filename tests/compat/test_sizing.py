"""How many workers, how large a batch, how fast: what is measured, and what is left as it was."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gpuloader.compat import calculate_optimal_batch_size, diagnose_dataloader_speed, get_optimal_num_workers
from gpuloader.errors import ConfigError, DeviceError


@pytest.mark.parametrize(
    ("device_type", "gpus", "cores", "processes", "expected"),
    [
        ("cpu", 8, 64, 1, 0),
        ("cuda", 1, 64, 1, 4),
        ("cuda", 8, 64, 1, 32),
        ("cuda", 8, 16, 1, 16),  # no more than cores
        ("cuda", 8, 64, 8, 4),  # torchrun's processes share them
        ("cuda", 1, 1, 2, 1),
    ],
)
def test_workers(
    monkeypatch: pytest.MonkeyPatch, device_type: str, gpus: int, cores: int, processes: int, expected: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("gpuloader.compat.sizing.available_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert get_optimal_num_workers(device_type) == expected


class Limited(nn.Module):
    """A net whose memory ends above so many samples. It is on torch's device "meta", which computes shapes alone."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.tried: list[tuple[int, bool]] = []
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2)
        )

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        self.tried.append((len(images), torch.is_grad_enabled()))
        if len(images) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return {"logits": self.layers(images)}


@pytest.mark.parametrize(
    ("room", "most", "expected"),
    [
        (100, 512, 51),  # 64 fit, 128 do not
        (2, 512, 1),
        (10_000, 512, 409),
        (10_000, 100, 51),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_the_batch_doubles_until_memory_ends(room: int, most: int, expected: int, training: bool) -> None:
    model = Limited(room).to("meta").train(training)
    assert calculate_optimal_batch_size(model, (3, 8, 8), "meta", most=most) == expected
    assert {grads for _, grads in model.tried} == {training}
    assert [size for size, _ in model.tried] == [2**power for power in range(1, len(model.tried) + 1)]


def test_no_room_for_two_samples() -> None:
    with pytest.raises(DeviceError, match=r"2 samples of \(3, 8, 8\) do not fit next to the model"):
        calculate_optimal_batch_size(Limited(1).to("meta"), (3, 8, 8), "meta")


def test_a_try_leaves_the_model_as_it_was() -> None:
    from gpuloader.compat.sizing import _fits

    model = Limited(100).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    assert _fits(model, (8, 3, 8, 8), "cpu")
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())  # BatchNorm's averages too
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert torch.get_rng_state().equal(drawn)


class Slow:
    """Batches that take a while; to begin takes longer."""

    def __init__(self, batches: int, seconds: float) -> None:
        self.batches, self.seconds, self.epochs = batches, seconds, 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        for number in range(self.batches):
            time.sleep(self.seconds)
            yield number


@pytest.mark.parametrize(("batches", "seconds", "slow"), [(20, 0.0, False), (4, 0.15, True)])
def test_speed_is_that_of_one_epoch(
    capsys: pytest.CaptureFixture[str], batches: int, seconds: float, slow: bool
) -> None:
    loader = Slow(batches, seconds)
    measured = diagnose_dataloader_speed(loader)
    printed = capsys.readouterr().out
    assert measured >= seconds
    assert loader.epochs == 1
    assert printed.startswith(f"Average batch load time: {measured:.3f}s\n")
    assert ("num_workers" in printed) == slow


def test_a_short_epoch_has_nothing_to_measure() -> None:
    with pytest.raises(ConfigError, match="an epoch has 3 batches: it must have more than warmup=3"):
        diagnose_dataloader_speed([1, 2, 3])
