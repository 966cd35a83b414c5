"""MixUp and CutMix: shares and boxes, drawn as torchvision draws them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from oracle import transforms
from scipy import stats

from gpuloader import transforms as T
from gpuloader.plan import Draw, Draws, Stream
from gpuloader.recipe import Mixing
from gpuloader.recipe.distributions import beta

v2 = transforms.v2
COUNT = 4000
HEIGHT, WIDTH = 40, 60
IMAGE = torch.empty(1, 3, HEIGHT, WIDTH)


def draw(count: int = COUNT) -> Draw:
    return Draws(5, 2, np.arange(count)).of(Stream.MIX)


def mixing(mix: T.Mix) -> Mixing:
    return mix.draw(draw(), HEIGHT, WIDTH)


def is_cut(drawn: Mixing) -> np.ndarray:
    return drawn.box.any(axis=1)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 4.0])
def test_the_share_of_mixup_is_beta(alpha: float) -> None:
    drawn = mixing(T.Mix(10, mixup_alpha=alpha))
    assert (drawn.weight.dtype, drawn.box.dtype, drawn.box.shape) == (np.float32, np.int32, (COUNT, 4))
    assert not drawn.box.any()
    # float32 knows no numbers between 1 - 6e-8 and 1, where a small alpha has many: the ends are counted.
    end, of_beta = 1e-3, stats.beta(alpha, alpha)
    low, high = drawn.weight < end, drawn.weight > 1 - end
    for count in (low.sum(), high.sum()):
        assert stats.binomtest(int(count), COUNT, of_beta.cdf(end)).pvalue > 1e-3
    between = drawn.weight[~low & ~high].astype(float)
    assert (
        stats.kstest(between, lambda x: (of_beta.cdf(x) - of_beta.cdf(end)) / (1 - 2 * of_beta.cdf(end))).pvalue > 1e-3
    )


class Given:
    """A distribution of which the sample is known."""

    def __init__(self, value: float) -> None:
        self.value = value

    def sample(self, shape: object) -> float:
        return self.value


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_boxes_are_torchvisions(monkeypatch: pytest.MonkeyPatch, alpha: float) -> None:
    drawn, uniform, theirs = mixing(T.Mix(10, cutmix_alpha=alpha)), draw()(6), v2.CutMix(num_classes=10)
    centres: Iterator[int] = iter(())
    monkeypatch.setattr(torch, "randint", lambda high, size: torch.tensor([next(centres)]))
    for row in range(500):
        theirs._dist = Given(float(beta(uniform[row : row + 1, 2:4], alpha)[0]))
        y, x = uniform[row, 4:]
        centres = iter([int(x * WIDTH), int(y * HEIGHT)])
        expected = theirs.make_params([IMAGE])
        left, top, right, bottom = expected["box"]
        assert drawn.box[row].tolist() == [top, left, bottom, right]
        assert drawn.weight[row] == np.float32(expected["lam_adjusted"])


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_boxes_are_distributed_as_torchvisions(alpha: float) -> None:
    torch.manual_seed(0)
    theirs = v2.CutMix(alpha=alpha, num_classes=10)
    made = (theirs.make_params([IMAGE]) for _ in range(COUNT))
    others = np.array([[*each["box"], each["lam_adjusted"]] for each in made], np.float32)
    drawn = mixing(T.Mix(10, cutmix_alpha=alpha))
    for ours, column in ((drawn.box[:, 0], 1), (drawn.box[:, 3], 2), (drawn.weight, 4)):
        assert stats.ks_2samp(ours, others[:, column]).pvalue > 1e-3


def test_the_share_is_what_the_box_leaves() -> None:
    drawn = mixing(T.Mix(10, mixup_alpha=0.5, cutmix_alpha=1.0))
    top, left, bottom, right = drawn.box.T
    assert min(top.min(), left.min()) >= 0
    assert (bottom.max(), right.max()) == (HEIGHT, WIDTH)
    cut = is_cut(drawn)
    left_over = 1 - (bottom - top) * (right - left) / (HEIGHT * WIDTH)
    np.testing.assert_array_equal(drawn.weight[cut], left_over.astype(np.float32)[cut])
    assert ((drawn.weight >= 0) & (drawn.weight <= 1)).all()


@pytest.mark.parametrize("switch_p", [0.0, 0.2, None, 1.0])
def test_the_switch_says_which_of_the_two(switch_p: float | None) -> None:
    mix = T.Mix(10, 0.3, 1.0) if switch_p is None else T.Mix(10, 0.3, 1.0, switch_p=switch_p)
    drawn, only_mixup, only_cutmix = mixing(mix), mixing(T.Mix(10, 0.3)), mixing(T.Mix(10, 0.0, 1.0))
    uniform = draw()(2)[:, 1]
    switched = uniform < (0.5 if switch_p is None else switch_p)
    for name in ("weight", "box"):
        expected = [getattr(each, name) for each in (only_cutmix, only_mixup)]
        np.testing.assert_array_equal(getattr(drawn, name)[switched], expected[0][switched])
        np.testing.assert_array_equal(getattr(drawn, name)[~switched], expected[1][~switched])
    assert stats.binomtest(int(switched.sum()), COUNT, 0.5 if switch_p is None else switch_p).pvalue > 1e-3


@pytest.mark.parametrize(("mixup_alpha", "cutmix_alpha"), [(0.8, 0.0), (0.0, 1.0)])
def test_the_switch_has_no_say_where_there_is_only_one(mixup_alpha: float, cutmix_alpha: float) -> None:
    always, never = (mixing(T.Mix(10, mixup_alpha, cutmix_alpha, switch_p=p)) for p in (1.0, 0.0))
    np.testing.assert_array_equal(always.weight, never.weight)
    assert is_cut(always).any() == (cutmix_alpha > 0)


@pytest.mark.parametrize("p", [0.0, 0.3, None, 1.0])
@pytest.mark.parametrize(("mixup_alpha", "cutmix_alpha"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_p_says_only_whether(p: float | None, mixup_alpha: float, cutmix_alpha: float) -> None:
    alphas = {"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha}
    drawn, always = mixing(T.Mix(10, **alphas, **({} if p is None else {"p": p}))), mixing(T.Mix(10, **alphas, p=1.0))
    mixed = draw()(1)[:, 0] < (1.0 if p is None else p)
    assert stats.binomtest(int(mixed.sum()), COUNT, 1.0 if p is None else p).pvalue > 1e-3
    for name, nothing in (("weight", 1), ("box", 0)):
        np.testing.assert_array_equal(getattr(drawn, name)[mixed], getattr(always, name)[mixed])
        assert (getattr(drawn, name)[~mixed] == nothing).all()


def test_a_pair_is_drawn_the_same_alone() -> None:
    mix = T.Mix(10, 0.4, 1.0, p=0.9)
    alone, drawn = mix.draw(Draws(5, 2, np.array([77])).of(Stream.MIX), HEIGHT, WIDTH), mixing(mix)
    assert alone.weight[0] == drawn.weight[77]
    np.testing.assert_array_equal(alone.box[0], drawn.box[77])


@pytest.mark.parametrize(
    ("mix", "at_0", "at_5"),
    [
        (T.Mix(10, 0.8, 1.0, p={0: 1, 5: 0}), T.Mix(10, 0.8, 1.0), T.Mix(10, 0.8, 1.0, p=0.0)),
        (T.Mix(10, {0: 0.8, 5: 0.2}), T.Mix(10, 0.8), T.Mix(10, 0.2)),
        (T.Mix(10, {0: 0.8, 5: 0}, {0: 0, 5: 1}), T.Mix(10, 0.8), T.Mix(10, cutmix_alpha=1.0)),  # CutMix follows MixUp
        (
            T.Mix(10, {0: 0.8, 5: 0}, label_smoothing=0.1),
            T.Mix(10, 0.8, label_smoothing=0.1),
            T.Mix(10, p=0, label_smoothing=0.1),
        ),
    ],
)
def test_a_mix_by_epoch(mix: T.Mix, at_0: T.Mix, at_5: T.Mix) -> None:
    assert [mix.at(epoch) for epoch in (0, 4, 5, 99)] == [at_0, at_0, at_5, at_5]
    ended = mixing(T.Mix(10, p=0.0))
    assert (ended.weight == 1).all()
    assert not ended.box.any()


@pytest.mark.parametrize(
    ("mix", "only_pastes"),
    [
        (T.Mix(9, cutmix_alpha={0: 1, 5: 0}), True),
        (T.Mix(9, {0: 0, 5: 1}, 1.0), False),
        (T.Mix(9, 1.0, 1.0, switch_p=1), True),
        (T.Mix(9, 1.0, {0: 1, 5: 0}, switch_p=1), False),  # then it is MixUp
    ],
)
def test_a_mix_that_only_pastes_does_so_in_all_epochs(mix: T.Mix, only_pastes: bool) -> None:
    assert mix.only_pastes == only_pastes
