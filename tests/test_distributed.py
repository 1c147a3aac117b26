"""Several processes, started by `torchrun` and by `accelerate launch`, train what one process trains; offloading.

What the processes do is in distributed_worker.py. All of it runs on CPUs, over gloo.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import accelerate
import distributed_worker as worker
import pytest
import tiny
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file
from tiny import patched
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(worker.PROCESSES)]
# Without MPI, `--cpu` starts one process whatever --num_processes says: this is the way to several on CPUs.
ACCELERATE = [
    "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(worker.PROCESSES), "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port",
]  # fmt: skip


def free_port():
    """Releases of accelerate before 1.15 do not look for one themselves."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def launch(launcher, folder, *tasks):
    """Run tasks in several processes; none of them is left behind, whatever happens."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", *launcher, worker.__file__, str(folder), *tasks],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-5000:]


def states_are_close(ours, theirs):
    """Of the tensors that were saved: one of several tied names."""
    assert len(theirs) > 20
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def check_fsdp2(made):
    """One process resumes what several saved, and takes the next step as the unsharded model took it there."""
    for family, *choices in worker.MODELS:
        model = worker.model_of(family, *choices)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-3)
        weights, moments = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": moments}
        dcp.load(saved, checkpoint_id=made / family)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        worker.step(model, worker.rows(family, worker.PROCESSES * worker.BATCH), optimizer)
        worker.same(model.state_dict(), torch.load(made / f"{family}.pt"))


def check_conversion(made):
    for family in worker.CONVERTED:
        first, second = (torch.load(made / f"{family}-{rank}.pt") for rank in range(worker.PROCESSES))
        alone = worker.converted(family).state_dict()
        for name, tensor in first.items():
            assert torch.equal(second[name], tensor), name
        worker.same(first, alone)


def check_trainer(made, folder):
    for family in worker.TRAINED:
        end = load_file(made / family / "end" / "model.safetensors")
        alone = worker.trainer_of(family, folder / "alone", 1)
        alone.train()
        states_are_close(alone.model.state_dict(), end)
        if family == "gpt2":
            # T5 leaves Transformers' count of tokens aside: its loss is logged times the number of processes.
            losses = [entry["loss"] for entry in alone.state.log_history if "loss" in entry]
            assert losses == pytest.approx(torch.load(made / family / "losses.pt"), rel=1e-5)
        resumed = worker.trainer_of(family, folder / "resumed", 1)
        resumed.train(resume_from_checkpoint=str(made / family / "checkpoint-2"))
        states_are_close(resumed.model.state_dict(), end)
        head = getattr(transformers, tiny.AUTO_HEAD[family])
        states_are_close(head.from_pretrained(made / family / "end").state_dict(), end)


def check_extras(made, folder):
    """The processes agree, log once, and do what one process does, which resumes their checkpoint."""
    for family in worker.ANNEALED:
        first, second = (torch.load(made / f"{family}-{rank}.pt") for rank in range(worker.PROCESSES))
        one = worker.extras_of(family, folder / "alone" / "extras", 1)
        alone = worker.outcome(one)
        assert [first["printed"], second["printed"], len(alone["logged"])] == [4, 0, 4]
        for theirs in (first, second):
            assert theirs["groups"] == alone["groups"]
            assert theirs["native"] == alone["native"] == "drop"
            assert list(theirs["state"]) == list(alone["state"])
            for seen, expected in zip(theirs["logged"], alone["logged"], strict=True):
                assert seen == pytest.approx(expected, rel=1e-4, abs=2e-5)
        assert [group[:2] for group in alone["groups"]] == [(0.01, 0), (0.01, 0), (0.02, 0), (0.02, 0)]
        for name, tensor in first["state"].items():
            assert torch.equal(second["state"][name], tensor), name
        worker.same(first["state"], alone["state"])
        resumed = worker.extras_of(family, folder / "resumed" / "extras", 1)
        resumed.train(resume_from_checkpoint=str(made / family / "checkpoint-2"))
        worker.same(resumed.model.state_dict(), first["state"])
        head = getattr(transformers, tiny.AUTO_HEAD[family])
        loaded = head.from_pretrained(made / family / "end")
        assert loaded.config.relpos["native"] == "drop"
        worker.same(loaded.state_dict(), first["state"])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torchrun_ddp_fsdp2_and_trainer_with_extras_equal_one_process_which_resumes_what_they_saved(tmp_path):
    launch(TORCHRUN, tmp_path, "ddp", "every_choice", "fsdp2", "annealing", "trainer", "extras")
    check_fsdp2(tmp_path / "fsdp2")
    check_trainer(tmp_path / "trainer", tmp_path)
    check_extras(tmp_path / "extras", tmp_path)


@pytest.mark.slow
@pytest.mark.distributed
def test_accelerate_launch_with_a_loop_of_ones_own_equals_one_process_which_resumes_its_state(tmp_path):
    launch([*ACCELERATE, free_port()], tmp_path, "loop", "plugin", "conversion")
    check_conversion(tmp_path / "conversion")
    for family in worker.TRAINED:
        made = tmp_path / "loop" / family
        end = load_file(made / "end" / "model.safetensors")
        accelerator, *prepared = worker.loop_of(family, 1)
        for _ in range(2):
            worker.epoch(accelerator, *prepared)
        states_are_close(prepared[0].state_dict(), end)
        accelerator, *prepared = worker.loop_of(family, 1)
        accelerator.load_state(str(made / "state"))
        worker.epoch(accelerator, *prepared)
        states_are_close(prepared[0].state_dict(), end)


# Parameters that are elsewhere until they are needed. (Trap C in test_traps.py: `cpu_offload` for every scheme.)

DISK_MAPS = {
    "bert": {"bert.embeddings": "cpu", "bert.encoder.layer.0": "disk", "bert.encoder.layer.1": "cpu", "cls": "cpu"},
    "gpt2": {"transformer.wte": "cpu", "transformer.wpe": "disk", "transformer.h.0": "cpu", "transformer.h.1": "disk",
             "transformer.ln_f": "disk", "lm_head": "cpu"},
}  # fmt: skip


@pytest.mark.core
@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", DISK_MAPS)
def test_model_partly_on_disk_gives_the_same_logits_bit_for_bit(family, native, tmp_path):
    batch = tiny.inputs(family)
    model = patched(family, "sum", native, "token")
    expected = tiny.logits(model, batch)
    accelerate.dispatch_model(
        model, DISK_MAPS[family], main_device="cpu", offload_dir=tmp_path, force_hooks=True, offload_buffers=True
    )
    assert "meta" in {parameter.device.type for parameter in tiny.added(model).values()}
    assert torch.equal(tiny.logits(model, batch), expected)


@pytest.mark.parametrize(("family", "head"), [("bert", AutoModelForMaskedLM), ("gpt2", AutoModelForCausalLM)])
def test_model_loaded_with_a_device_map_gives_the_same_logits_bit_for_bit(family, head, tmp_path):
    batch = tiny.inputs(family)
    model = patched(family, "sum", "gate", "token")
    expected = tiny.logits(model, batch)
    model.save_pretrained(tmp_path / "model")
    loaded = head.from_pretrained(
        tmp_path / "model", device_map=DISK_MAPS[family], offload_folder=str(tmp_path / "offloaded")
    )
    assert "meta" in {parameter.device.type for parameter in tiny.added(loaded).values()}
    assert torch.equal(tiny.logits(loaded, batch), expected)


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_tables_elsewhere_than_their_layers_give_the_same_logits_bit_for_bit(family, tmp_path):
    """A device map that is inferred without regard to layers may cut there."""
    batch = tiny.inputs(family)
    model = patched(family, "sum", "gate", "token")
    expected = tiny.logits(model, batch)
    owners = [path for path, module in model.named_modules() if module._parameters or module._buffers]
    device_map = {path: "disk" if ".relpos." in path else "cpu" for path in owners}
    accelerate.dispatch_model(model, device_map, main_device="cpu", offload_dir=tmp_path, force_hooks=True)
    assert {parameter.device.type for name, parameter in model.named_parameters() if ".relpos." in name} == {"meta"}
    assert torch.equal(tiny.logits(model, batch), expected)
