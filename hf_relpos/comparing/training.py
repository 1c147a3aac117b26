"""Fine-tuning one classifier with `Trainer`, with everything that a fair comparison needs recorded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_relpos.comparing.examples import Example
from hf_relpos.metrics import load_metric
from hf_relpos.modeling import state

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Budget:
    """How a model is trained. All that are compared get the same.

    Attributes:
        max_steps: Number of optimizer steps.
        evaluations: How often to measure during training, besides once before it.
        max_length: Longer texts are cut off after this many tokens.
        batch_size: Texts per training step.
        eval_batch_size: Texts per evaluation step.
        learning_rate: Peak learning rate of the pretrained parameters; rises over a tenth, then falls.
        added_learning_rate: The same for the parameters that a patch adds. They start at nothing, while the
            pretrained ones only have to be adjusted.
    """

    max_steps: int
    evaluations: int
    max_length: int
    batch_size: int = 8
    eval_batch_size: int = 32
    learning_rate: float = 1e-4
    added_learning_rate: float = 2e-3

    @property
    def eval_steps(self) -> int:
        """Steps from one evaluation to the next."""
        return max(1, self.max_steps // self.evaluations)


@dataclass
class Run:
    """What one training run measured.

    Attributes:
        steps: The steps at which the model was evaluated, 0 first.
        eval_loss: Loss on the evaluation texts at each of them.
        accuracy: Accuracy at each of them.
        f1_macro: Macro-F1 at each of them.
        seconds_per_step: Median time of a training step, without the first ones.
    """

    steps: list[int] = field(default_factory=list)
    eval_loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    f1_macro: list[float] = field(default_factory=list)
    seconds_per_step: float = float("nan")

    def final(self) -> dict[str, float]:
        """The numbers at the end of training."""
        return {"accuracy": self.accuracy[-1], "f1_macro": self.f1_macro[-1], "loss": self.eval_loss[-1]}


class EncodedTexts(Dataset):
    """Tokenized texts with their labels."""

    def __init__(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self._inputs = tokenizer([example.text for example in examples], truncation=True, max_length=max_length)
        self._labels = [example.label for example in examples]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            **{name: values[index] for name, values in self._inputs.items()},
            "labels": self._labels[index],
        }


class StepTimer(TrainerCallback):
    """The time each training step takes; evaluation and logging lie between the steps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop it, once the device is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._start)

    def median(self) -> float:
        """The median, without the first steps, which allocate memory; of all, if there are no others."""
        return statistics.median(self.seconds[WARM_UP_STEPS:] or self.seconds)


class EvaluateAtEnd(TrainerCallback):
    """Measure after the last step too, wherever the regular evaluations fall."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for an evaluation on the last step."""
        if state.global_step >= state.max_steps:
            control.should_evaluate = True


class NamedProgress(ProgressCallback):
    """Trainer's progress bar, with the model's name and the latest losses in the bar."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar."""
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(f"training, {self._name}")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Show the latest losses behind the bar."""
        for key, shown_as in (
            ("loss", "loss"),
            ("eval_loss", "validation loss"),
            ("eval_accuracy", "accuracy"),
        ):
            if logs and key in logs:
                self._shown[shown_as] = f"{float(logs[key]):.3f}"
        if self.training_bar is not None:
            self.training_bar.set_postfix(self._shown)


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train: Dataset,
    evaluation: Dataset,
    budget: Budget,
    seed: int,
    work_dir: Path,
    callbacks: Sequence[TrainerCallback] = (),
) -> Run:
    """Fine-tune a classifier in place.

    Args:
        model: The classifier; trained when this returns.
        tokenizer: Its tokenizer, for padding.
        train: Encoded texts to learn from.
        evaluation: Encoded texts to measure on.
        budget: How to train.
        seed: Seed of dropout and of the order of the data.
        work_dir: Where `Trainer` may write.
        callbacks: What else happens while it trains: a progress bar, for one.

    Returns:
        What was measured.
    """
    timer = StepTimer()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(work_dir),
            max_steps=budget.max_steps,
            per_device_train_batch_size=budget.batch_size,
            per_device_eval_batch_size=budget.eval_batch_size,
            learning_rate=budget.learning_rate,
            warmup_steps=budget.max_steps // 10,
            seed=seed,
            data_seed=seed,
            eval_strategy="steps",
            eval_steps=budget.eval_steps,
            eval_on_start=True,
            logging_steps=budget.eval_steps,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,  # its own bar makes room for another
        ),
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=_measure(),
        optimizers=(optimizer_for(model, budget), None),
        callbacks=[timer, EvaluateAtEnd(), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)  # prints every log entry; Trainer adds it when its own bar is off
    trainer.train()
    return _run_of(trainer.state.log_history, timer)


def predict_logits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    batch_size: int,
    show_progress: bool = True,
) -> torch.Tensor:
    """The logits of a classifier for each text, `[texts, classes]`, float32 on the CPU.

    Always in the same batches, and with weights in memory of their own, so that two calls with the same weights give
    the same bits: as they come from a file they may begin anywhere, and the last bit of a product can depend on that.
    """
    from tqdm.auto import tqdm

    model.eval()
    for weight in (*model.parameters(), *model.buffers()):
        weight.data = weight.data.clone()
    starts = range(0, len(texts), batch_size)
    parts = []
    with torch.inference_mode():
        for start in tqdm(starts, desc="predicting", leave=False, disable=not show_progress):
            batch = list(texts[start : start + batch_size])
            inputs = tokenizer(batch, truncation=True, max_length=max_length, padding=True, return_tensors="pt")
            parts.append(model(**inputs.to(model.device)).logits.float().cpu())
    return torch.cat(parts)


def added_parameters(model: PreTrainedModel) -> int:
    """How many parameters a patch has added to the model."""
    return sum(parameter.numel() for _, _, parameter in state.added_parameters(model))


def optimizer_for(model: PreTrainedModel, budget: Budget) -> torch.optim.Optimizer:
    """AdamW; the parameters that a patch adds have a learning rate of their own."""
    added_names = {name for name, _, _ in state.added_parameters(model)}
    groups: dict[bool, list[torch.nn.Parameter]] = {False: [], True: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name in added_names].append(parameter)
    rates = {False: budget.learning_rate, True: budget.added_learning_rate}
    return torch.optim.AdamW(
        [{"params": members, "lr": rates[added]} for added, members in groups.items() if members],
        weight_decay=0.0,
        fused=True,
    )


def _measure() -> Any:
    accuracy, f1 = load_metric("accuracy"), load_metric("f1")

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        given = {"predictions": np.argmax(logits, axis=-1), "references": prediction.label_ids}
        return {
            "accuracy": accuracy.compute(**given)["accuracy"],
            "f1_macro": f1.compute(**given, average="macro")["f1"],
        }

    return compute


def _run_of(log_history: list[dict[str, Any]], timer: StepTimer) -> Run:
    run = Run(seconds_per_step=timer.median())
    for entry in log_history:
        if "eval_loss" in entry:
            run.steps.append(entry["step"])
            run.eval_loss.append(entry["eval_loss"])
            run.accuracy.append(entry["eval_accuracy"])
            run.f1_macro.append(entry["eval_f1_macro"])
    return run
