from following.replicas import streaming
from rmqstore.errors import BrokerUnreachableError
from rmqstore.replica import events
from rmqstore.replica.decisions import decide
from rmqstore.replica.events import Question
from rmqstore.replica.remoting import LogBounds
from rmqstore.replica.replica_state import Phase
from rmqstore.replica.retention import Retention


def test_sequence():
    s = streaming(retention=Retention(max_bytes=1))
    s = s._replace(
        copy=s.copy._replace(end=1 << 16, durable=1 << 16, saved_end=1 << 16, built=1 << 16),
        stream=s.stream._replace(position=1 << 16, has_begun=True),
        broker=s.broker._replace(bounds=LogBounds(0, 1 << 17)),
        attempts=s.attempts._replace(is_confirmed=True),
    )
    s, a = decide(s, events.HeartbeatCame(30.0, 1 << 16))
    print([type(x).__name__ for x in a], s.stream.pending)
    s, a = decide(s, events.Ticked(30.01, 0, True))
    print([type(x).__name__ for x in a])
    assert not any(isinstance(x, events.FindOldFiles) for x in a)


def test_old_end_question():
    s = streaming()
    s = s._replace(
        phase=Phase.COMPARING,
        broker=s.broker._replace(asking=frozenset({Question.END})),
        timers=s.timers._replace(end_asked_at=-5.0),
        attempts=s.attempts._replace(began=-1.0),
    )
    s, a = decide(s, events.Unanswered(1.0, Question.END, BrokerUnreachableError("a", "b")))
    print(s.phase, [type(x).__name__ for x in a])
    assert s.phase is Phase.COMPARING
