import os
import signal
import subprocess
import sys

from cli_toys import SMALL

from toys import DEADLINE_S


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_the_run_stops_after_its_batch(tmp_path):
    code = "from swath.cli import main; main()"
    options = [*SMALL, "--workers=2", "--frames=1e8", "--eval-every=1e7", "--no-video", "--log=csv"]
    command = [sys.executable, "-c", code, "train", "CartPole-v1", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    with started as child:
        try:
            line = next((line for line in child.stdout if ": evaluation " in line), "nothing")
            os.killpg(child.pid, signal.SIGINT)
            rest, errors = child.communicate(timeout=DEADLINE_S)
        finally:
            child.kill()
    assert "at step 0" in line
    assert (child.returncode, errors) == (130, "")
    assert "to continue:\n  swath train --resume runs/CartPole-v1-seed0" in rest
