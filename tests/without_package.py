"""Loads saved models in a process that cannot import `hf_relpos`, and says what it saw. Run by tests as a script.

The command line is one JSON object: what to load, for each Auto class by what name; where the inputs and the expected
outputs are, or where to put the outputs; what to save again. The last line printed is a JSON object with an outcome for
each.
"""

from __future__ import annotations

import json
import sys
from typing import Any


class NoPackage:
    """Makes the package look as if it were not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "hf_relpos":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoPackage())

import torch  # noqa: E402
import transformers  # noqa: E402


def outcome_of(task: dict[str, Any]) -> Any:
    load = getattr(transformers, task["auto_class"]).from_pretrained
    try:
        loaded = load(task["name"], **task.get("options", {}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if "resave" in task:
        loaded.save_pretrained(task["resave"])
    if "outputs" in task:
        with torch.no_grad():
            outputs = [loaded.eval()(**batch)[0] for batch in torch.load(task["inputs"])]
        torch.save(outputs, task["outputs"])
    if "expected" not in task:
        return type(loaded).__name__
    expected = torch.load(task["expected"])
    batch = expected["batch"]
    with torch.no_grad():
        output = loaded.eval()(**batch, output_hidden_states=True, output_attentions=True)
        plain = loaded(**batch)
    kept = "hidden_states" in output or "decoder_hidden_states" in output
    off = ((plain[0] - expected["output"]).abs().max() / expected["output"].abs().max()).item()
    generated = "generated" not in expected or torch.equal(loaded.generate(**expected["prompt"]), expected["generated"])
    return {"class": type(loaded).__name__, "off": off, "recorded": kept, "generated": generated}


if __name__ == "__main__":
    torch.set_num_threads(1)
    outcomes = {key: outcome_of(task) for key, task in json.loads(sys.argv[1]).items()}
    print("\n" + json.dumps(outcomes))
