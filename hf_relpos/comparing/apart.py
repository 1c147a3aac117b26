"""One run in a process of its own, so that the memory it takes is its own: asked for here, done there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.fresh import run_fresh
from hf_relpos.comparing.plan import Job, Plan
from hf_relpos.comparing.run import Result


def run_apart(plan: Plan, job: Job, source: str) -> Result:
    """Fine-tune in a process that does nothing else.

    Raises:
        ComparisonError: if the process fails; with the last line it wrote.
    """
    given = {"plan": plan.to_dict(), "setting": job.setting.to_dict(), "seed": job.seed, "source": source}
    with tempfile.TemporaryDirectory(prefix="hf_relpos_compare_") as scratch:
        done = run_fresh("hf_relpos.comparing.child", json.dumps(given), Path(scratch))
    if done.returncode != 0:
        last = (done.stderr.strip() or "it wrote nothing").splitlines()[-1]
        raise ComparisonError(f"The process of the run {job} ended with status {done.returncode}: {last}")
    return Result.from_dict(json.loads(done.stdout.splitlines()[-1]))
