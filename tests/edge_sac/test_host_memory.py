"""Freed memory stays in the process."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from edge_sac.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    held = [bytearray(size) for size in (1_600_000, 800_000, 2_400_000) * 3]
work()
before = faults()
for _ in range(50):
    work()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back and can be told not to")
def test_repeated_work_of_an_update_s_size_faults_no_pages_in_again():
    def faults(mode: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True, timeout=60
        )
        return int(done.stdout)

    # 50 rounds of 9 arrays, 200 to 600 pages each.
    assert faults("keep") < 500
    assert faults("plain") > 5_000
