"""What `hf_relpos.comparing.apart` starts: a run is read from the input, done, and its result written."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from hf_relpos.comparing.plan import Job, Plan
from hf_relpos.comparing.run import run_here
from hf_relpos.comparing.settings import Setting


def main() -> None:
    """Do the run."""
    given = json.load(sys.stdin)
    job = Job(Setting.from_dict(given["setting"]), given["seed"])
    print(json.dumps(asdict(run_here(Plan.from_dict(given["plan"]), job, given["source"]))))


if __name__ == "__main__":
    main()
