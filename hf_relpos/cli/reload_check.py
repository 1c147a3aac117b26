"""Whether a saved model, loaded by a fresh process, predicts exactly what the model in memory predicts.

The other side of the check is this file run as a program: it reads a request from its standard input, loads
the folder through the Auto classes, and writes the logits it gets as a NumPy file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hf_relpos
from hf_relpos.cli.errors import CheckFailed
from hf_relpos.comparing.fresh import run_fresh
from hf_relpos.comparing.training import predict_logits


def check_reload(
    directory: Path,
    logits: torch.Tensor,
    texts: Sequence[str],
    *,
    max_length: int,
    batch_size: int,
    device: torch.device,
) -> None:
    """Load a saved classifier in a fresh process and compare its logits with those of the model in memory.

    Args:
        directory: Folder of the saved model and tokenizer.
        logits: What the model in memory computes for the texts, with the same lengths and batches.
        texts: The texts.
        max_length: Longer texts are cut off after this many tokens.
        batch_size: Texts computed together.
        device: Where the model in memory is; the other process computes on the same.

    Raises:
        CheckFailed: If the folder cannot be loaded, if what it holds is not patched, or if any logit differs.
    """
    with tempfile.TemporaryDirectory(prefix="hf_relpos_reload_") as folder:
        answer = Path(folder) / "logits.npy"
        request = {
            "directory": str(directory.resolve()),
            "answer": str(answer),
            "texts": list(texts),
            "max_length": max_length,
            "batch_size": batch_size,
            "device": str(device),
            "threads": torch.get_num_threads(),
        }
        done = run_fresh("hf_relpos.cli.reload_check", json.dumps(request), Path(folder))
        if done.returncode != 0:
            raise CheckFailed(f"A fresh process could not load {directory} and predict with it:\n{done.stderr.strip()}")
        compare(logits, torch.from_numpy(np.load(answer)))


def compare(logits: torch.Tensor, reloaded: torch.Tensor) -> None:
    """Compare the logits of the model in memory with those of the reloaded one.

    Raises:
        CheckFailed: If they are not equal, bit for bit.
    """
    if logits.shape != reloaded.shape:
        raise CheckFailed(
            f"The reloaded model gives logits of shape {tuple(reloaded.shape)}, the trained one {tuple(logits.shape)}."
        )
    if not torch.equal(logits, reloaded):
        difference = float((logits - reloaded).abs().max())
        changed = int((logits.argmax(-1) != reloaded.argmax(-1)).sum())
        raise CheckFailed(
            f"The reloaded model does not predict what the trained one predicted: the logits differ by up to "
            f"{difference:.3g}, and {changed} of {len(logits)} predicted classes changed. "
            "The saved folder does not hold the model that was measured."
        )


def _answer(request: dict[str, Any]) -> None:
    torch.set_num_threads(request["threads"])
    model = AutoModelForSequenceClassification.from_pretrained(request["directory"]).to(request["device"])
    if not hf_relpos.is_patched(model):
        raise SystemExit(f"{request['directory']} was loaded as a {type(model).__name__}, which is not patched.")
    tokenizer = AutoTokenizer.from_pretrained(request["directory"])
    logits = predict_logits(
        model, tokenizer, request["texts"], request["max_length"], request["batch_size"], show_progress=False
    )
    np.save(request["answer"], logits.numpy())


if __name__ == "__main__":
    _answer(json.load(sys.stdin))
