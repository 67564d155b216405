import signal

import pytest

from swath.cli.failure import ANSWER, StopRequest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_only_asks_and_the_exit_code_tells_which(number, code, capsys):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(print) as stop:
        signal.raise_signal(number)
        assert stop.requested == number
    assert capsys.readouterr().out == ANSWER + "\n"
    assert stop.exit_code == code
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_process_was_told_to_ignore_stays_ignored(ignored):
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        with StopRequest(print) as stop:
            signal.raise_signal(ignored)
            assert not stop.requested
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)


def test_the_second_ctrl_c_interrupts():
    with StopRequest(print):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
