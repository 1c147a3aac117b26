"""`python -m hf_relpos.cli` is `hf-relpos`."""

import sys

from hf_relpos.cli import main

sys.exit(main())
