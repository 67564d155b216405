import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for 1 MiB; only root may make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk of a given size can be mounted: {error}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, capture_output=True, timeout=60)
