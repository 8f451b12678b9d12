"""After a run of all tests: those that failed, once more, alone; `once_more.py STATUS`, as pytest left with it.

With thousands of tests and hundreds of processes on two cores now and then one does not get its share in time. It may
say so alone once more, with nothing beside it; what is broken fails again. Many at once are no accident, and neither is
a run that could not be made.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1
MOST = 5


def main(status: int, failed: Path = FAILED) -> int:
    if status != TESTS_FAILED or not failed.is_file():
        return status
    names = sorted(json.loads(failed.read_text()))
    if not 0 < len(names) <= MOST:
        return status
    print(f"\n{len(names)} failed among the others, and once more alone:", *names, sep="\n  ", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *names], check=False).returncode
    if again == 0:
        print("\nPassed alone, and worth a look:", *names, sep="\n  ")
    return again


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
