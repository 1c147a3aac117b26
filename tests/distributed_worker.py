"""What each of several processes does in test_distributed.py: ``torchrun ... distributed_worker.py TASK FOLDER``.

A task compares with one process where it can, and otherwise leaves what it made in the folder. It fails by failing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import tiny
import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hf_relpos import patch_model
from hf_relpos.layer import RelPosLayer

PROCESSES = 2
# (family, native, gate, share_layers): every kind of model, each choice that changes where parameters are.
MODELS = [
    ("bert", "gate", "head", False),
    ("gpt2", "drop", "token", True),
    ("t5", "gate", "token", False),
    ("umt5", "keep", "head", True),
]
TRAINED = ("gpt2", "t5")
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


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2 as its users apply it: to each layer, then to the whole."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for module in model.modules():
        if type(module).__name__ in ("BertLayer", "GPT2Block", "T5Block", "UMT5Block"):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


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
        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            same(whole, alone.state_dict())
        weights, moments = get_state_dict(model, optimizers[1])
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / family)
        # The next step, for the test to compare with: the whole model takes it here, the resumed one there.
        step(alone, batch, optimizers[0])
        if rank == 0:
            torch.save(alone.state_dict(), folder / f"{family}.pt")


def trainer_of(family: str, folder: Path, processes: int, **more: Any) -> Trainer:
    """A Trainer whose steps see the same rows whatever the number of processes."""
    choices = next(choices for name, *choices in MODELS if name == family)
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=PROCESSES * BATCH // processes, max_steps=4, save_steps=2,
        gradient_accumulation_steps=2, learning_rate=0.01, adam_epsilon=1e-3, logging_steps=1, use_cpu=True,
        report_to=[], seed=3, disable_tqdm=True, ddp_find_unused_parameters=False, **more,
    )  # fmt: skip
    batch = rows(family, 24)
    data = [{name: tensor[row] for name, tensor in batch.items()} for row in range(24)]
    return Trainer(model_of(family, *choices), arguments, train_dataset=data)


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


TASKS: dict[str, Callable[[Path], None]] = {"ddp": ddp, "fsdp2": fsdp2, "trainer": trainer, "loop": loop}

if __name__ == "__main__":
    torch.set_num_threads(1)
    # One process group for all tasks, over gloo; accelerate and the Trainer take the one that is there.
    assert accelerate.PartialState(cpu=True).num_processes == PROCESSES
    for task in sys.argv[2:]:
        place = Path(sys.argv[1]) / task
        place.mkdir(exist_ok=True)
        TASKS[task](place)
    torch.distributed.destroy_process_group()
