"""How the programs of this folder end: as the scripts do. Importing it puts them on the path."""

import sys
from argparse import ArgumentTypeError
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for bear, uwac and d4rl


@contextmanager
def errors_in_one_line():
    """What a user can mend, or the disk does, ends the program with one line and exit code 1."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (ArgumentTypeError, ValueError, ArithmeticError, OSError, ImportError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
