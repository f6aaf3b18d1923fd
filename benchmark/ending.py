"""How the programs of this folder end: as the scripts do, with `errors_in_one_line`."""

import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import bear
import uwac

EXIT_CODES = {bear.InputError: 2, uwac.InputError: 2, FloatingPointError: 3}


@contextmanager
def errors_in_one_line():
    """What a user can mend, or the disk does, ends the program with a line and its exit code."""
    try:
        yield
    except (*EXIT_CODES, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODES.get(type(error), 1))
