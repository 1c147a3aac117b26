"""The folder of a comparison: its plan, and a file for each run that is finished, so that it goes on where it was."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_relpos.comparing.differences import differences
from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.files import write_json
from hf_relpos.comparing.plan import Job, Plan
from hf_relpos.comparing.run import Result
from hf_relpos.comparing.settings import Setting

PLAN, RUNS, MODELS = "plan.json", "runs", "converted"
_ANEW = "Take it away, and the run is done again; all others stay."


class Folder:
    """What is kept of a comparison.

    Args:
        path: which need not exist.
        plan: what is compared.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self._plan = plan

    def check(self) -> None:
        """Refuse a folder with files of others, or with another plan. Writes nothing.

        Raises:
            ComparisonError: names the folder, and what differs.
        """
        kept = self.path / PLAN
        if not kept.is_file():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ComparisonError(
                    f"`output_dir` {self.path} is there already, with files in it, and no comparison was begun there "
                    f"(it has no {PLAN}). Give the name of a new folder."
                )
            return
        differ = differences(_read(kept, "Give the name of a new folder."), self._plan.record())
        if differ:
            raise ComparisonError(
                f"In `output_dir` {self.path} a comparison with another plan was begun: {'; '.join(differ)}. Give what "
                "it was begun with to go on with it, or the name of a new folder."
            )

    def open(self) -> None:
        """Make the folder, and write down what is done in it."""
        (self.path / RUNS).mkdir(parents=True, exist_ok=True)
        if not (self.path / PLAN).exists():
            write_json(self.path / PLAN, self._plan.record())

    def results(self) -> dict[Job, Result]:
        """What is finished, in the order of the plan.

        Raises:
            ComparisonError: names a file that holds something else.
        """
        found = {}
        for job in self._plan.jobs:
            path = self._file_of(job)
            if path.exists():
                found[job] = _result(path, job)
        return found

    def keep(self, job: Job, result: Result) -> None:
        """Write down what a run has measured."""
        write_json(self._file_of(job), asdict(result))

    def model_of(self, setting: Setting) -> Path:
        """Where the converted model of a setting is, or is to be."""
        return self.path / MODELS / self._name_of(setting)

    def _file_of(self, job: Job) -> Path:
        return self.path / RUNS / f"{self._name_of(job.setting)}.seed-{job.seed}.json"

    def _name_of(self, setting: Setting) -> str:
        """Its number and its name, without what file systems do not take."""
        return f"{self._plan.settings.index(setting) + 1:02d}-{re.sub('[^A-Za-z0-9]+', '-', setting.name)}"


def _read(path: Path, to_do: str) -> dict[str, Any]:
    """The object that a file of JSON holds."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ComparisonError(f"{path} is damaged: it holds no object of JSON. {to_do}")
    return values


def _result(path: Path, job: Job) -> Result:
    """The result of a run, as it was kept."""
    try:
        result = Result.from_dict(_read(path, _ANEW))
        result.numbers()
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ComparisonError(f"{path} is damaged: it holds no result of a run. {_ANEW}") from error
    if (result.setting, result.seed) != (job.setting.name, job.seed):
        raise ComparisonError(
            f"{path} holds the run {result.setting}, seed {result.seed}, but its name is that of {job}. {_ANEW}"
        )
    return result


def finished_runs(path: Path) -> int:
    """How many runs are kept in a folder."""
    return len(list((path / RUNS).glob("*.json")))
