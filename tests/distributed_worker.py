"""What each of several processes does in test_distributed.py: ``torchrun ... distributed_worker.py TASK FOLDER``.

A task compares with one process where it can, and otherwise leaves what it made in the folder. It fails by failing.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import tiny
import torch
import torch.distributed.checkpoint as dcp
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, set_seed
from pairwise import pairs, rows_of
from test_pipelines import tokenizer
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from hf_relpos import (
    AnnealNativeGateCallback,
    ClippedBias,
    PatchStateError,
    RelPosConfig,
    RelPosLoggingCallback,
    RelPosTrainerMixin,
    Shaw,
    convert,
    patch_model,
)
from hf_relpos.layer import RelPosLayer
from hf_relpos.training import relpos_measures

PROCESSES = 2
# (family, native, gate, share_layers): every kind of model, each choice that changes where parameters are.
MODELS = [
    ("bert", "gate", "head", False),
    ("gpt2", "drop", "token", True),
    ("t5", "gate", "token", False),
    ("umt5", "keep", "head", True),
]
# Each family, each scheme, and all choices, in as few models as that needs.
ONCE = rows_of(
    pairs(
        family=tiny.FAMILIES, scheme=tiny.SCHEMES, native=tiny.NATIVE, gate=tiny.GATES, share_layers=(False, True),
        apart=("family", "scheme", "native", "gate", "share_layers"),
    ).mark, with_grid=False,
)[1]  # fmt: skip
TRAINED = ("gpt2", "t5")
CONVERTED = ("bert", "gpt2")
ANNEALED = ("bert", "t5")  # the ones with a native gate
LENGTH, BATCH, RATE = 9, 2, 0.05


def model_of(family: str, native: str, gate: str, share_layers: bool) -> Any:
    """A patched model with large values; the same in every process."""
    config = tiny.choices("sum", native, gate, share_layers=share_layers)
    return tiny.fill(patch_model(tiny.build(family), config)).train()


def checkpointed(model: Any) -> Any:
    """The model with activations computed again in the backward pass; Transformers 5.24 renamed the method."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return model


def rows(family: str, count: int) -> dict[str, Tensor]:
    """So many labelled sequences, no two alike."""
    wanted = tiny.tokens(count, LENGTH, seed=5)
    return {"input_ids": tiny.tokens(count, LENGTH), "attention_mask": torch.ones_like(wanted), "labels": wanted}


def part(batch: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """The rows of one process in one micro-batch."""
    return {name: tensor[BATCH * index : BATCH * (index + 1)] for name, tensor in batch.items()}


def step(model: nn.Module, batch: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(**batch).loss.backward()
    optimizer.step()


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 2e-5) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=atol, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def ddp(folder: Path) -> None:
    """DistributedDataParallel with its defaults: a step over two micro-batches equals one over all rows at once.

    Here and in FSDP2 the many processes compute activations again in the backward pass, and the one does not.
    """
    rank = torch.distributed.get_rank()
    for family, *choices in MODELS:
        batch = rows(family, PROCESSES * 2 * BATCH)
        alone = model_of(family, *choices)
        wrapped = nn.parallel.DistributedDataParallel(checkpointed(model_of(family, *choices)))
        optimizers = [torch.optim.SGD(model.parameters(), RATE) for model in (alone, wrapped)]
        for _ in range(2):  # the second pass is where an unused parameter is complained about
            step(alone, batch, optimizers[0])
            optimizers[1].zero_grad()
            with wrapped.no_sync():
                (wrapped(**part(batch, rank)).loss / 2).backward()
            (wrapped(**part(batch, PROCESSES + rank)).loss / 2).backward()
            optimizers[1].step()
        same(wrapped.module.state_dict(), alone.state_dict())


def every_choice(folder: Path) -> None:
    """DistributedDataParallel with its defaults, whatever is chosen: gradients are the mean of both."""
    rank = torch.distributed.get_rank()
    for family, scheme, native, gate, share_layers in ONCE:
        config, batch = tiny.choices(scheme, native, gate, share_layers=share_layers), rows(family, PROCESSES * BATCH)
        alone, ours = (tiny.fill(patch_model(tiny.build(family), config)).train() for _ in range(2))
        wrapped = nn.parallel.DistributedDataParallel(ours)
        alone(**batch).loss.backward()
        for _ in range(2):  # the second pass is where an unused parameter is complained about
            wrapped.zero_grad()
            wrapped(**part(batch, rank)).loss.backward()
        wanted = dict(alone.named_parameters())
        for name, parameter in ours.named_parameters():
            case = f"{family} {scheme} {native} {gate} {share_layers}: {name}"
            assert parameter.grad is not None, case
            torch.testing.assert_close(
                parameter.grad, wanted[name].grad, atol=1e-4, rtol=1e-3, msg=lambda m, case=case: f"{case}: {m}"
            )


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2 as its users apply it: to each layer, then to the whole."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for module in model.modules():
        if type(module).__name__ in ("BertLayer", "GPT2Block", "T5Block", "UMT5Block"):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a sharded model, in the first process."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def fsdp2(folder: Path) -> None:
    """Steps of a sharded model equal those of a whole one; what it saves is resumed by one process in the test."""
    rank = torch.distributed.get_rank()
    for family, *choices in MODELS:
        batch = rows(family, PROCESSES * BATCH)
        alone, model = model_of(family, *choices), sharded(checkpointed(model_of(family, *choices)))
        for layer in filter(lambda module: isinstance(module, RelPosLayer), model.modules()):
            for name, parameter in layer.named_parameters():
                assert isinstance(parameter, DTensor), name
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        assert held < 0.8 * sum(parameter.numel() for parameter in alone.parameters())
        optimizers = [torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-3) for model in (alone, model)]
        for _ in range(2):
            step(alone, batch, optimizers[0])
            step(model, part(batch, rank), optimizers[1])
        state = whole(model)
        if rank == 0:
            same(state, alone.state_dict())
        weights, moments = get_state_dict(model, optimizers[1])
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / family)
        # The next step, for the test to compare with: the whole model takes it here, the resumed one there.
        step(alone, batch, optimizers[0])
        if rank == 0:
            torch.save(alone.state_dict(), folder / f"{family}.pt")


def annealing(folder: Path) -> None:
    """A sharded model is measured as a whole one, and lets go of its native positions as it does.

    The Trainer's part is played here: on CPUs it does not shard.
    """
    arguments = SimpleNamespace(load_best_model_at_end=False, world_size=PROCESSES)
    for family in ANNEALED:
        choices = next(choices for name, *choices in MODELS if name == family)
        batch = rows(family, PROCESSES * BATCH)
        batches = batch, part(batch, torch.distributed.get_rank())
        models = [model_of(family, *choices) for _ in batches]
        callbacks = [AnnealNativeGateCallback(end=1.0) for _ in batches]
        state = TrainerState(global_step=0, max_steps=2)

        def tell(event: str, callbacks: Any = callbacks, models: Any = models, state: Any = state) -> None:
            for callback, model in zip(callbacks, models, strict=True):
                getattr(callback, event)(arguments, state, TrainerControl(), model=model)

        tell("on_init_end")
        sharded(models[1])
        optimizers = [torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-3) for model in models]
        tell("on_train_begin")
        for _ in range(state.max_steps):
            for each in zip(models, batches, optimizers, strict=True):
                step(*each)
            state.global_step += 1
            tell("on_step_end")
            alone, ours = map(relpos_measures, models)
            assert ours == pytest.approx(alone, rel=1e-4, abs=1e-6)
        tell("on_train_end")
        assert [model.config.relpos["native"] for model in models] == ["drop", "drop"]
        for each in zip(models, batches, optimizers, strict=True):
            step(*each)
        weights = whole(models[1])
        if torch.distributed.get_rank() == 0:
            same(weights, models[0].state_dict())


def trainer_of(
    family: str, folder: Path, processes: int, cls: Callable[..., Trainer] = Trainer, **more: Any
) -> Trainer:
    """A Trainer whose steps see the same rows whatever the number of processes."""
    choices = next(choices for name, *choices in MODELS if name == family)
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=PROCESSES * BATCH // processes, max_steps=4, save_steps=2,
        gradient_accumulation_steps=2, learning_rate=0.01, adam_epsilon=1e-3, logging_steps=1, use_cpu=True,
        report_to=[], seed=3, disable_tqdm=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    batch = rows(family, 24)
    data = [{name: tensor[row] for name, tensor in batch.items()} for row in range(24)]
    return cls(model_of(family, *choices), arguments, train_dataset=data, **more)


def trainer(folder: Path) -> None:
    """The Trainer as it is; weights, losses and a checkpoint half-way are left for the test to compare."""
    for family in TRAINED:
        one = trainer_of(family, folder / family, PROCESSES)
        assert one.accelerator.num_processes == PROCESSES
        one.train()
        one.save_model(str(folder / family / "end"))
        if one.is_world_process_zero():
            losses = [entry["loss"] for entry in one.state.log_history if "loss" in entry]
            torch.save(losses, folder / family / "losses.pt")


class RelPosTrainer(RelPosTrainerMixin, Trainer):
    pass


def extras_of(family: str, folder: Path, processes: int) -> Trainer:
    """A Trainer with all that the package adds to it; its native positions have no effect in the second half."""
    callback = AnnealNativeGateCallback(end=0.5)
    one = trainer_of(family, folder, processes, RelPosTrainer, callbacks=[callback], relpos_lr=0.02)
    one.add_callback(RelPosLoggingCallback(one))
    return one


def outcome(one: Trainer) -> dict[str, Any]:
    """Train, and tell what to compare: groups by their parameters' names, the log, what was printed, the weights."""
    names = {id(parameter): name for name, parameter in one.model.named_parameters()}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        one.train()
    return {
        "groups": [
            (group["initial_lr"], group["weight_decay"], [names[id(parameter)] for parameter in group["params"]])
            for group in one.optimizer.param_groups
        ],
        "logged": [
            {name: value for name, value in entry.items() if name.startswith("relpos/")}
            for entry in one.state.log_history
            if any(name.startswith("relpos/") for name in entry)
        ],
        "printed": sum("relpos/" in line for line in printed.getvalue().splitlines()),
        "native": one.model.config.relpos["native"],
        "state": one.model.state_dict(),
    }


def extras(folder: Path) -> None:
    """Parameter groups, logging and annealing with the Trainer, whose DDP waits for the gradient of each parameter."""
    for family in ANNEALED:
        one = extras_of(family, folder / family, PROCESSES)
        torch.save(outcome(one), folder / f"{family}-{torch.distributed.get_rank()}.pt")
        one.save_model(str(folder / family / "end"))
        with pytest.raises(PatchStateError, match=r"earlier training, .* 2 processes .* make a new Trainer"):
            one.train()


def loop_of(family: str, processes: int) -> tuple[accelerate.Accelerator, Any, Any, Any]:
    """A user's own training loop with accelerate, prepared."""
    set_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == processes
    choices = next(choices for name, *choices in MODELS if name == family)
    model, batch = model_of(family, *choices), rows(family, 16)
    data = [{name: tensor[row] for name, tensor in batch.items()} for row in range(16)]
    loader = DataLoader(data, batch_size=PROCESSES * BATCH // processes)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def epoch(accelerator: accelerate.Accelerator, model: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


def loop(folder: Path) -> None:
    """An epoch, a checkpoint of everything, and another epoch."""
    for family in TRAINED:
        accelerator, *prepared = loop_of(family, PROCESSES)
        epoch(accelerator, *prepared)
        accelerator.save_state(str(folder / family / "state"))
        epoch(accelerator, *prepared)
        accelerator.save_model(prepared[0], str(folder / family / "end"))
        accelerator.free_memory()


def plugin(folder: Path) -> None:
    """accelerate's FSDP2 plugin: what it makes of any model on CPUs, and of ours where it takes CPUs for GPUs.

    Comes last: accelerate remembers in the environment that there was a plugin.
    """
    rank, family = torch.distributed.get_rank(), "gpt2"
    choices = next(choices for name, *choices in MODELS if name == family)
    batch, alone = rows(family, PROCESSES * BATCH), model_of(family, *choices)
    for model, known, kind in (
        (tiny.build(family), DistributedType.MULTI_CPU, nn.parallel.DistributedDataParallel),
        (model_of(family, *choices), DistributedType.MULTI_GPU, FSDPModule),
    ):
        AcceleratorState._reset_state()
        accelerate.PartialState().distributed_type = known
        shards = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
        accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=shards)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-3))
        # The day that CPUs are sharded as well, docs/scale.md can say so.
        assert isinstance(model, kind), type(model)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    theirs = torch.optim.AdamW(alone.parameters(), 1e-3, eps=1e-3)
    for count in range(2):
        step(alone, batch, theirs)
        optimizer.zero_grad()
        accelerator.backward(model(**part(batch, rank)).loss)
        optimizer.step()
        if count == 0:
            accelerator.save_state(str(folder / "state"))
    after = whole(model)
    # Back to the middle, and the second step again: a state was saved and loaded.
    accelerator.load_state(str(folder / "state"))
    optimizer.zero_grad()
    accelerator.backward(model(**part(batch, rank)).loss)
    optimizer.step()
    again = whole(model)
    if rank == 0:
        same(after, alone.state_dict())
        same(again, alone.state_dict())


def converted(family: str) -> Any:
    """A copy of a tiny model; batches of which a process may have no sequence, and windows."""
    texts = [" ".join(f"w{number % 37 + 1}" for number in range(start, start + 40)) for start in range(0, 400, 9)]
    return convert(
        tiny.build(family), RelPosConfig([ClippedBias(8), Shaw(4)], native="drop"), texts, tokenizer(), steps=(3, 4),
        batch_tokens=32, lengths=(8, 32), progress=False, training_arguments={"adam_epsilon": 1e-3, "use_cpu": True},
    )  # fmt: skip


def conversion(folder: Path) -> None:
    """The processes end with the same model; it is left for one process to be compared with."""
    for family in CONVERTED:
        torch.save(converted(family).state_dict(), folder / f"{family}-{torch.distributed.get_rank()}.pt")


TASKS: dict[str, Callable[[Path], None]] = {
    "ddp": ddp, "every_choice": every_choice, "fsdp2": fsdp2, "annealing": annealing, "trainer": trainer,
    "extras": extras, "loop": loop, "plugin": plugin, "conversion": conversion,
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # as in conftest.py: what was imported is not worth asking for each patch, or collecting
    # One process group for all tasks, over gloo; accelerate and the Trainer take the one that is there.
    assert accelerate.PartialState(cpu=True).num_processes == PROCESSES
    for task in sys.argv[2:]:
        place = Path(sys.argv[1]) / task
        place.mkdir(exist_ok=True)
        TASKS[task](place)
    # A process that leaves while another still talks to it may be aborted. Models in DistributedDataParallel are gone
    # by now: one that outlives the group ends it while a thread of gloo waits for the interpreter, forever.
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
