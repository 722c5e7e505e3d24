"""Stopping answers: from another thread, by Ctrl-C, by a failure."""

import signal
import threading

import pytest

from npu_llm import ChatSession, NPUModelForCausalLM, SessionError
from npu_ops.kernel_programs.execution import Execution
from npu_runtime import Session


class At:
    """A streamer that does something when the answer has some tokens."""

    def __init__(self, count, act):
        self.count, self.act = count, act

    def put(self, value):
        self.count -= 1
        if self.count == -1:
            self.act()

    def end(self):
        pass


def assert_goes_on(session, answer_of, tokens):
    """That a stopped session holds its answer, and reads nothing twice."""
    held = session.cached_tokens
    answer = session.last_reply
    assert (len(answer.tokens), answer.finish) == (tokens, "cancelled")
    assert session.messages[-1] == {"role": "assistant", "content": answer.text}
    assert held == answer.prompt_tokens + tokens - 1
    reply = session.ask("w6")
    assert reply.prefilled_tokens == reply.prompt_tokens - held
    assert reply.tokens == answer_of(session.messages[:-1])


@pytest.mark.parametrize("way", ["event", "method"])
def test_another_thread_stops_an_answer(session, answer_of, way):
    session.ask("w4")
    event = threading.Event()
    stop = event.set if way == "event" else session.cancel

    def from_another_thread():
        other = threading.Thread(target=stop)
        other.start()
        other.join()

    reply = session.ask("w5", streamer=At(3, from_another_thread), cancel=event)
    assert reply is session.last_reply
    assert_goes_on(session, answer_of, 3)


@pytest.fixture
def interruptible():
    """Python's handler of Ctrl-C, which a background process lacks."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_an_answer_after_its_step(session, answer_of):
    session.ask("w4")
    with pytest.raises(KeyboardInterrupt):
        session.ask("w5", streamer=At(3, lambda: signal.raise_signal(signal.SIGINT)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_goes_on(session, answer_of, 3)


def interrupt():
    raise KeyboardInterrupt


def test_interrupt_of_another_handler_keeps_what_is_known(session, answer_of):
    session.ask("w4")
    with pytest.raises(KeyboardInterrupt):
        session.ask("w5", streamer=At(3, interrupt))
    assert_goes_on(session, answer_of, 3)


def test_interrupt_inside_a_step_of_kernels_loses_nothing(
    folder, greedy, answer_of, monkeypatch, cache_dir
):
    model = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline="kernels", cache_dir=cache_dir
    )
    session = ChatSession(model, "w1 w2 w3", **greedy)
    session.ask("w4")
    held = session.cached_tokens
    run = Execution.step

    def broken(self, rows):
        run(self, rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "step", broken)
        with pytest.raises(KeyboardInterrupt):
            session.ask("w5")
    assert session.cached_tokens == held
    reply = session.ask("w5")
    assert reply.prefilled_tokens == reply.prompt_tokens - held
    assert reply.tokens == answer_of(session.messages[:-1])


def test_interrupt_inside_a_step_gives_the_cache_up(
    folder, greedy, answer_of, monkeypatch, cache_dir
):
    model = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline="dynamic", cache_dir=cache_dir
    )
    session = ChatSession(model, "w1 w2 w3", **greedy)
    session.ask("w4")
    run = Session.run

    def broken(self, *arguments, **keywords):
        run(self, *arguments, **keywords)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", broken)
        with pytest.raises(KeyboardInterrupt):
            session.ask("w5")
    assert session.cached_tokens == 0
    assert [message["role"] for message in session.messages] == ["system", "user", "assistant"]
    reply = session.ask("w5")
    assert reply.prefilled_tokens == reply.prompt_tokens
    assert reply.tokens == answer_of(session.messages[:-1])


def test_question_that_was_stopped_before_its_answer_goes(session):
    session.ask("w4")
    before = session.messages
    with pytest.raises(KeyboardInterrupt):
        session.ask("w5", streamer=At(0, interrupt))
    assert session.messages == before
    assert session.last_reply.finish == "cancelled"
    assert session.last_reply.text == ""


def test_failure_leaves_the_session_as_it_was(session, answer_of):
    session.ask("w4")
    before = session.messages

    def fail():
        raise RuntimeError("no paper")

    with pytest.raises(RuntimeError, match="no paper"):
        session.ask("w5", streamer=At(3, fail))
    assert session.messages == before
    reply = session.ask("w5")
    # The question was read already.
    assert reply.prefilled_tokens == 1
    assert reply.tokens == answer_of(session.messages[:-1])


def test_second_thread_is_refused(session, tmp_path, assert_code):
    caught = []

    def ask():
        with pytest.raises(SessionError) as refusal:
            session.ask("w5")
        caught.append(refusal)
        with pytest.raises(SessionError):
            session.save(tmp_path / "busy")

    session.ask("w4", streamer=At(2, ask))
    assert_code(caught[0], "session-busy", "cancel()")
