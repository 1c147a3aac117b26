"""Writes what later releases must load and compute the same: `python -m tests.regression.write`, once per release.

The folder is named after the installed version. With `--check` nothing is written: for every artefact there is, it
prints whether the float32 outputs are, bit for bit, those that were stored. On the machine that wrote them they must
be; elsewhere they need not, since processors and BLAS libraries round differently.

Only public names of the package are used, so that this runs with every later release.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

import hf_relpos
from hf_relpos import ClippedBias, RelPosConfig, Shaw, T5Bias, patch_model, peft_modules_to_save, save_standalone

from .artefacts import (
    DTYPES,
    HERE,
    INDEX,
    Artefact,
    artefacts,
    batches_of,
    digest,
    load,
    logits,
    trainer,
)

VOCAB, HIDDEN, LAYERS, HEADS, POSITIONS = 50, 16, 2, 2, 16

_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": POSITIONS,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_T5 = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "d_kv": HIDDEN // HEADS,
    "d_ff": 32,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
}

# Class of the head: (Auto class, config).
_MODELS: dict[str, tuple[str, Any]] = {
    "BertForMaskedLM": ("AutoModelForMaskedLM", transformers.BertConfig(**_BERT)),
    "BertForSequenceClassification": (
        "AutoModelForSequenceClassification",
        transformers.BertConfig(**_BERT, num_labels=3),
    ),
    "BertLMHeadModel": (
        "AutoModelForCausalLM",
        transformers.BertConfig(**_BERT, is_decoder=True, bos_token_id=1, eos_token_id=None),
    ),
    "GPT2LMHeadModel": ("AutoModelForCausalLM", transformers.GPT2Config(**_GPT2)),
    "T5ForConditionalGeneration": ("AutoModelForSeq2SeqLM", transformers.T5Config(**_T5)),
    "MT5ForConditionalGeneration": ("AutoModelForSeq2SeqLM", transformers.MT5Config(**_T5)),
    "UMT5ForConditionalGeneration": ("AutoModelForSeq2SeqLM", transformers.UMT5Config(**_T5)),
}

_SUM = (Shaw(2, per_head=True, rank=3), T5Bias(num_buckets=8, max_distance=6), ClippedBias(3))

# Two batches of all rows, and two more after the checkpoint. Gradients that are zero but for rounding (those of a key's
# bias) must not become steps, as they do with Adam's usual epsilon.
_TRAINING: dict[str, Any] = {
    "max_steps": 4,
    "learning_rate": 0.01,
    "adam_epsilon": 1e-3,
    "weight_decay": 0.01,
    "optim": "adamw_torch",
    "use_cpu": True,
    "logging_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}


@dataclass(frozen=True)
class Case:
    """What is made.

    Attributes:
        head: the class of the stock model.
        relpos: how it is patched.
        kind: how it is written.
        length: of the long input; above `POSITIONS` only where the native positions have no limit. From about 100 on
            the engine `auto` leaves `eager` for others.
    """

    head: str
    relpos: RelPosConfig
    kind: str = "plain"
    length: int = POSITIONS


# Between them every family, scheme, choice and engine.
CASES = {
    "bert": Case("BertForMaskedLM", RelPosConfig(Shaw(3))),
    "bert-classes": Case(
        "BertForSequenceClassification",
        RelPosConfig(Shaw(2, per_head=True), native="drop", gate="token"),
        length=120,
    ),
    "bert-decoder": Case(
        "BertLMHeadModel",
        RelPosConfig(Shaw(4, value=False), native="drop", gate="none", engine="blockwise"),
        length=160,
    ),
    "gpt2": Case("GPT2LMHeadModel", RelPosConfig(Shaw(3, rank=2), gate="token", layers=[1], engine="fused")),
    "gpt2-window": Case("GPT2LMHeadModel", RelPosConfig(Shaw(3, key=False), native="drop", window=7), length=120),
    "gpt2-shared": Case(
        "GPT2LMHeadModel", RelPosConfig(Shaw(5), native="keep", gate="none", share_layers=True, engine="eager")
    ),
    "t5": Case("T5ForConditionalGeneration", RelPosConfig(T5Bias(8, 6), engine="eager"), length=100),
    "t5-sum": Case("T5ForConditionalGeneration", RelPosConfig(_SUM, gate="token", layers=[0]), length=100),
    "mt5": Case(
        "MT5ForConditionalGeneration",
        RelPosConfig(ClippedBias(5), native="keep", gate="none", window=4, engine="blockwise"),
    ),
    "umt5": Case("UMT5ForConditionalGeneration", RelPosConfig(_SUM, native="drop", share_layers=True)),
    "umt5-gated": Case("UMT5ForConditionalGeneration", RelPosConfig(ClippedBias(3), gate="token", engine="fused")),
    "standalone": Case("BertForMaskedLM", RelPosConfig(_SUM, gate="token"), kind="standalone"),
    "adapter": Case("BertForSequenceClassification", RelPosConfig([Shaw(3), T5Bias(8, 6)]), kind="adapter"),
    "checkpoint": Case("GPT2LMHeadModel", RelPosConfig(_SUM, gate="token"), kind="checkpoint"),
    "pickle-bert": Case("BertForMaskedLM", RelPosConfig(Shaw(3), engine="eager"), kind="pickle"),
    "pickle-t5": Case("T5ForConditionalGeneration", RelPosConfig(_SUM, share_layers=True), kind="pickle"),
}


def build(case: Case) -> Any:
    """The patched model, every parameter so large that whatever is done wrong shows."""
    model = getattr(transformers, case.head)(copy.deepcopy(_MODELS[case.head][1]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() or ".ln_" in name:
                parameter.add_(noise, alpha=0.1)
            else:
                parameter.copy_(noise * (2.0 if "relative_attention_bias" in name else 0.3))
    return fill_added(patch_model(model.eval(), case.relpos), seed=1)


def fill_added(model: nn.Module, seed: int, trainable_only: bool = False) -> Any:
    """Random values for what the patch has added, or of an adapter for all that it trains."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad if trainable_only else "relpos" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8)
    return model


def tokens(*shape: int, seed: int) -> Tensor:
    """Random ids; none is a special one."""
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def batches(case: Case) -> dict[str, dict[str, Tensor]]:
    """A batch that is all real, padded on the right, padded on the left; and a long row."""
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[1, -3:] = 0
    mask[2, :2] = 0
    padded = {"input_ids": tokens(3, 11, seed=2) * mask, "attention_mask": mask}
    long = {"input_ids": tokens(1, case.length, seed=4)}
    if case.head.endswith("ConditionalGeneration"):
        padded["decoder_input_ids"] = tokens(3, 9, seed=3)
        long["decoder_input_ids"] = tokens(1, case.length - 2, seed=5)
    return {"padded": padded, "long": long}


# How each kind is written: each returns the model that was, and more tensors to store with it.

Written = tuple[nn.Module, dict[str, Tensor]]


def write_plain(model: Any, folder: Path) -> Written:
    model.save_pretrained(folder)
    return model, {}


def write_standalone(model: Any, folder: Path) -> Written:
    save_standalone(model, folder)
    return model, {}


def write_adapter(model: Any, folder: Path) -> Written:
    model.save_pretrained(folder / "base")
    adapter = LoraConfig(task_type="SEQ_CLS", r=2, modules_to_save=peft_modules_to_save(model))
    adapted = fill_added(get_peft_model(model, adapter), seed=6, trainable_only=True).eval()
    adapted.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink()  # PEFT's own words
    return adapted, {}


def write_checkpoint(model: Any, folder: Path) -> Written:
    rows = tokens(4, 9, seed=7)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = {**_TRAINING, "save_steps": 2}
        trainer(model, rows, Path(scratch), arguments).train()
        shutil.copytree(
            Path(scratch) / "checkpoint-2", folder, ignore=shutil.ignore_patterns("rng_state*", "training_args.bin")
        )
    after = {f"after/{name}": parameter.detach().clone() for name, parameter in model.named_parameters()}
    return type(model).from_pretrained(folder).eval(), {"rows": rows, **after}


def write_pickle(model: Any, folder: Path) -> Written:
    folder.mkdir()
    torch.save(model, folder / "model.pt")
    return model, {}


KINDS: dict[str, Callable[[Any, Path], Written]] = {
    "plain": write_plain,
    "standalone": write_standalone,
    "adapter": write_adapter,
    "checkpoint": write_checkpoint,
    "pickle": write_pickle,
}


def write_case(folder: Path, name: str, case: Case) -> Artefact:
    """Write one artefact and its tensors."""
    model = build(case)
    artefact = Artefact(
        folder=folder,
        name=name,
        kind=case.kind,
        auto_class=_MODELS[case.head][0],
        model_class=type(model).__name__,
        relpos=model.config.relpos,
        training=_TRAINING if case.kind == "checkpoint" else None,
    )
    written, tensors = KINDS[case.kind](model, artefact.path)
    inputs = batches(case)
    tensors |= {f"{batch}/{key}": tensor for batch, given in inputs.items() for key, tensor in given.items()}
    for dtype in DTYPES:
        outputs = logits(written, inputs, dtype)
        tensors |= {f"{dtype}/{batch}": tensor.contiguous() for batch, tensor in outputs.items()}
        if dtype == "float32":
            artefact = replace(artefact, bitwise=digest(outputs))
    safetensors.torch.save_file(tensors, artefact.tensors_path)
    return artefact


def write(folder: Path) -> None:
    """Write a release's folder.

    Raises:
        FileExistsError: if there is one.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: what a release has written stays as it is.")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        entries = {}
        for name, case in CASES.items():
            entry = asdict(write_case(made, name, case))
            entries[name] = {key: value for key, value in entry.items() if key not in ("folder", "name")}
        versions = {package.__name__: str(package.__version__) for package in (hf_relpos, transformers, torch, peft)}
        index = json.dumps({"versions": versions, "artefacts": entries}, indent=2) + "\n"
        (made / INDEX).write_text(index, encoding="utf-8")
        shutil.copytree(made, folder)


def check() -> bool:
    """Print of every artefact whether its float32 outputs are those stored; whether all are."""
    same = []
    for artefact in artefacts():
        same.append(digest(logits(load(artefact), batches_of(artefact), "float32")) == artefact.bitwise)
        print(f"{artefact}: {'bit-equal' if same[-1] else 'DIFFERENT'}")
    return all(same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; compare bit for bit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    if not arguments.check:
        write(HERE / hf_relpos.__version__)
    sys.exit(not check())


if __name__ == "__main__":
    main()
