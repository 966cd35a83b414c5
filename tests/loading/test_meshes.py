"""`World.from_mesh` and `World.from_group`: which ranks of torch.distributed get the same batches, and who compares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import SAMPLES, loader, seen, small_net, train
from ranks import outputs_of_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.utils import parameters_to_vector
from torch.testing._internal.distributed.fake_pg import FakeStore
from warm import warm

from gpuloader import World
from gpuloader.errors import ConfigError


@contextmanager
def process(rank: int, world_size: int) -> Iterator[None]:
    """One rank of torch.distributed without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


# --- which process has which data rank


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_in_any_mesh_the_data_rank_counts_through_the_named_dimensions(
    dimensions: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Each dimension has a size, and divides the data or not."""
    processes = math.prod(size for size, _ in dimensions)
    rank = data.draw(st.integers(0, processes - 1))
    with process(rank, processes):
        names = tuple(f"d{number}" for number in range(len(dimensions)))
        mesh = init_device_mesh("cpu", tuple(size for size, _ in dimensions), mesh_dim_names=names)
        dividing = [name for name, (_, divides) in zip(names, dimensions) if divides]
        world = World.from_mesh(mesh, data.draw(st.permutations(dividing)))  # the order is the mesh's
        coordinates = mesh.get_coordinate() or ()
    data_rank, data_ranks = 0, 1
    for coordinate, (size, divides) in zip(coordinates, dimensions):
        if divides:
            data_rank, data_ranks = data_rank * size + coordinate, data_ranks * size
    assert (world.rank, world.world_size) == (data_rank, data_ranks)
    assert rank in world.members[data_rank]
    assert {len(of) for of in world.members} == {processes // data_ranks}
    assert sorted(each for of in world.members for each in of) == list(range(processes))


def test_a_slice_has_only_its_own_ranks_and_a_flattened_mesh_those_of_its_dimensions() -> None:
    with process(5, 8):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        data = mesh["dp_replicate", "dp_shard"]
        for world in (World.from_mesh(data, ("dp_replicate", "dp_shard")), World.from_mesh(data._flatten("dp"))):
            assert (world.rank, world.members) == (2, ((1,), (3,), (5,), (7,)))


def test_a_group_divides_the_data_among_its_ranks_in_its_order() -> None:
    with process(3, 4):
        group = dist.new_group([3, 1])
        world = World.from_group(group)
        assert (world.rank, world.world_size) == (dist.get_rank(group), 2) == (1, 2)
        assert world.members == ((1,), (3,))


def test_the_local_rank_is_that_of_the_process_and_not_that_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with process(3, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert World.from_mesh(mesh, "dp").local_rank == World.from_group(dist.new_group([1, 3])).local_rank == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda mesh: loader("none.tar", world=mesh),
            "names=None: allowed are dimensions of the mesh: 'dp', 'tp'. Name those that divide the data: "
            "world=World.from_mesh(mesh, names); ranks that differ only in the others get the same batches",
        ),
        (lambda mesh: World.from_mesh(mesh, ("dp", "cp")), "names=('dp', 'cp'): allowed are dimensions of the mesh: '"),
        (
            lambda _: World.from_mesh(DeviceMesh("cpu", [0, 1])),
            "this process is rank 3 of torch.distributed, but the mesh has the ranks [0, 1]: make the loader only on",
        ),
        (
            lambda _: World.from_group(dist.new_group([0, 1])),
            "group=-100: allowed is a torch.distributed.ProcessGroup with this process in it; make the loader only on",
        ),
    ],
)
def test_what_does_not_say_how_to_divide_the_data_is_an_error(make: Callable[[Any], object], says: str) -> None:
    with process(3, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(ConfigError) as caught:
            make(mesh)
    assert says in str(caught.value)


# --- batches and states of four processes


DELIVER = """
import json; from loaders import loader, seen
mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
options = {'output': 'dict', 'last_batch': 'pad'}
worlds = {
    'mesh': World.from_mesh(mesh, 'dp'),
    'slice': mesh['dp'],
    'line': init_device_mesh('cpu', (4,)),
    'groups': World.from_group(pairs[rank // 2]),
}
said = {}
for name, world in worlds.items():
    with loader(arguments, 3, world=world, **options) as batches:
        said[name] = [batches.world.rank, batches.world.local_world_size, seen(batches)]
with loader(arguments, 4, world=worlds['mesh'], **options) as batches:
    for _, _ in zip(range(2), batches): pass
    said['state'] = batches.state_dict()
with loader(arguments, 2, world=worlds['line'], **options) as batches:
    batches.load_state_dict(said['state'])
    said['rest'] = seen(batches)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def delivered(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four ranks says, of the same data in several worlds."""
    return [json.loads(said) for said in outputs_of_ranks(DELIVER, tmp_path_factory.mktemp("ranks"), 4, *shards)]


@pytest.mark.parametrize(
    ("name", "data_ranks", "processes"),
    [("mesh", [0, 0, 1, 1], 4), ("slice", [0, 0, 1, 1], 2), ("line", [0, 1, 2, 3], 4), ("groups", [0, 1, 0, 1], 2)],
)
def test_ranks_of_one_data_rank_get_the_same_batches_and_together_each_sample_once(
    shards: list[Path], delivered: list[dict[str, Any]], name: str, data_ranks: list[int], processes: int
) -> None:
    alone = {}
    for rank in set(data_ranks):
        with loader(shards, 3, world=World(rank, len(set(data_ranks))), output="dict", last_batch="pad") as batches:
            alone[rank] = seen(batches)
    assert [said[name] for said in delivered] == [[rank, processes, alone[rank]] for rank in data_ranks]
    indices = [index for epoch in alone.values() for batch in epoch for index, _ in batch]
    assert sorted(indices) == list(range(SAMPLES))


def test_a_state_of_a_mesh_resumes_on_another_and_on_one_process(
    shards: list[Path], delivered: list[dict[str, Any]]
) -> None:
    state = delivered[0]["state"]
    assert [said["state"] for said in delivered] == [state] * 4
    with loader(shards, 8, output="dict", last_batch="pad") as batches:
        rest = seen(batches)[2:]
    with loader(shards, 8, output="dict", last_batch="pad") as batches:
        batches.load_state_dict(state)
        assert seen(batches) == rest
    steps = zip(*(said["rest"] for said in delivered))
    assert [[sample for batch in step for sample in batch] for step in steps] == rest


# --- agreement


AGREE = """
mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
world, pair = World.from_mesh(mesh, 'dp'), World.from_group(pairs[rank // 2])
def attempt(world, seed, wait_seconds=30):
    try: agree(world, {'seed': seed}, wait_seconds)
    except ConfigError as error: print(error)
    else: print('agreed')
attempt(world, 0)
attempt(world, int(rank == 1))
attempt(world, rank // 2)
attempt(World.from_mesh(mesh, 'tp' if rank == 1 else 'dp'), 0)
attempt(World.from_mesh(mesh, ('dp', 'tp') if rank == 3 else 'dp'), 0)
if rank < 2: attempt(pair, 0)  # a loader of this pair alone
attempt(pair, int(rank == 3))
import os; os.environ['LOCAL_WORLD_SIZE'] = '9'
of_torchrun = World.from_group(pairs[rank // 2])
print(pair.local_world_size, agree(pair, {}).local_world_size, agree(of_torchrun, {}).local_world_size)
if rank != 2: attempt(world, 0, 2)
"""


def test_disagreement_within_a_data_rank_and_across_is_named_on_all_ranks(tmp_path: Path) -> None:
    all_said = [said.splitlines() for said in outputs_of_ranks(AGREE, tmp_path, 4)]
    differ = "the loaders of the ranks differ: "
    ranks_differ = "data_rank=0 on ranks [0]; data_rank=1 on ranks [1, 2, 3]"
    sizes_differ = (
        "data_ranks=2 on ranks [0, 1, 2]; data_ranks=4 on ranks [3]; "
        "data_rank=0 on ranks [0, 1]; data_rank=1 on ranks [2]; data_rank=3 on ranks [3]"
    )
    for rank, said in enumerate(all_said):
        assert said[:5] == [
            "agreed",
            f"{differ}seed=0 on ranks [0, 2, 3]; seed=1 on ranks [1]",
            f"{differ}seed=0 on ranks [0, 1]; seed=1 on ranks [2, 3]",
            differ + ranks_differ,
            differ + sizes_differ,
        ]
        of_the_pair = ["agreed"] * 2 if rank < 2 else [f"{differ}seed=0 on ranks [2]; seed=1 on ranks [3]"]
        of_the_pair.append("1 2 9")  # torchrun's number, if it is larger than that of those who met
        assert said[5 : 5 + len(of_the_pair)] == of_the_pair
        left = said[5 + len(of_the_pair) :]
        assert [text.startswith("the ranks [2] did not make this loader within") for text in left] == [True] * (
            rank != 2
        )


def test_a_mixed_loader_waits_only_for_the_ranks_that_make_its_loaders(shards: list[Path], tmp_path: Path) -> None:
    work = (
        "from loaders import loader; from gpuloader import MixedLoader\n"
        "group = dist.new_group([1])\n"
        "if rank == 1:\n"
        "    photos = loader(arguments, world=World.from_group(group))\n"
        "    print(len(MixedLoader({'numbers': [1, 2], 'photos': photos}, 'sequential')))\n"
    )
    assert outputs_of_ranks(work, tmp_path, 2, *shards) == ["", "7\n"]


# --- training


TRAIN = """
import json, sys, torch, torch._dynamo, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from loaders import loader, small_net, train
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from gpuloader import World

def train_in_three_ways(rank, meeting, shards):
    dist.init_process_group('gloo', init_method=f'file://{meeting}', rank=rank, world_size=4)
    two = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))
    four = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp_replicate', 'dp_shard'))
    runs = {
        'DDP': (two, 'dp', lambda net: DistributedDataParallel(net, process_group=two.get_group('dp'))),
        'FSDP2': (two, 'dp', lambda net: fully_shard(net, mesh=two['dp'])),
        'FSDP2 with replicas': (four, ('dp_replicate', 'dp_shard'), lambda net: fully_shard(net, mesh=four)),
    }
    weights = {}
    for name, (mesh, names, distribute) in runs.items():
        world, net = World.from_mesh(mesh, names), small_net()
        with loader(shards, 8 // world.world_size, world=world) as batches:
            train(distribute(net), batches)
        whole = [each.full_tensor() if name != 'DDP' else each for each in net.parameters()]
        weights[name] = torch.cat([each.detach().flatten() for each in whole]).tolist()
    print(json.dumps(weights) + '\\n', end='')
    del net
    dist.destroy_process_group()

torch.multiprocessing.start_processes(train_in_three_ways, (sys.argv[1], sys.argv[2:]), nprocs=4, start_method='fork')
"""


@pytest.fixture(scope="module")
def trained(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    """The weights on each of four ranks, by what distributed the net. What they import takes seconds, so they fork."""
    done = warm().run(TRAIN, tmp_path_factory.mktemp("train") / "meeting", *shards)
    assert done.returncode == 0, done.stderr
    return [json.loads(said) for said in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["DDP", "FSDP2", "FSDP2 with replicas"])
def test_a_net_on_a_mesh_trains_as_on_one_process(
    shards: list[Path], trained: list[dict[str, list[float]]], name: str
) -> None:
    net = small_net()
    before = parameters_to_vector(net.parameters()).detach()
    with loader(shards, 8) as batches:
        train(net, batches)
    alone = parameters_to_vector(net.parameters()).detach()
    assert (alone - before).abs().max() > 1e-3
    assert len(trained) == 4
    for weights in trained:
        assert (torch.tensor(weights[name]) - alone).abs().max() < 1e-6
