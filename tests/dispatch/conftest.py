"""The clients and processes of the gateway's tests are used here, too, and the checker of the crash cases."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "gateway"))
sys.path.append(str(Path(__file__).parent.parent / "durable"))
