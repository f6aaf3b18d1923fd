"""What the programs of benchmark/ share. Importing it puts the scripts and d4rl on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
