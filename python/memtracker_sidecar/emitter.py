"""Sends events to the orchestrator: a ZeroMQ DEALER, msgpack batches, back-pressure, an acknowledgement at the end.

Any thread may call `emit`; garbage collection may call it in the middle of anything. So `emit` is one append to a deque
(atomic in CPython) and one thread, the sender, owns the socket: it drains the deque into batches of at most
`BATCH_EVENTS` events, at the latest every `BATCH_SECONDS`. When the reader is slow, the socket's high-water mark blocks
the sender, the deque fills, and `emit` waits: nothing is dropped.

`close` returns when the reader has answered the `close` event with one empty frame. Ending the connection earlier would lose
frames: a libzmq reader at its high-water mark that sees the other end hang up gives up what still lies in the kernel's socket
buffer (libzmq 4.3.5, src/stream_engine_base.cpp, `in_event_internal` sets `_io_error`, `restart_input` then ends the engine).
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgpack
import zmq

from memtracker_sidecar import protocol
from memtracker_sidecar.protocol import Event
from memtracker_sidecar.worker_spec import CurveKeys

BATCH_EVENTS = 4096
BATCH_SECONDS = 0.05
QUEUE_EVENTS = 16 * BATCH_EVENTS
"""Events that may wait for the sender before `emit` blocks."""
HIGH_WATER_MARK = 64
"""Batches that ZeroMQ holds for a slow reader before `send` blocks."""
READER_SECONDS = 60.0
"""How long the reader may take for a batch when the buffers are full, and for its acknowledgement of the close event."""


class EventSink(Protocol):
    """Anything that takes events in order. `Emitter` is one; tests use a list."""

    def emit(self, event: Event) -> None: ...


class EmitterError(RuntimeError):
    """The orchestrator cannot be reached or went away."""


class Emitter:
    """The event stream of one run."""

    def __init__(
        self,
        endpoint: str,
        run: str,
        *,
        curve: CurveKeys | None = None,
        timeout_seconds: float = READER_SECONDS,
    ) -> None:
        self._run = run
        self._queue: collections.deque[Event] = collections.deque()
        self._append: Callable[[Event], None] = self._queue.append
        self._wake = threading.Event()
        self._room = threading.Event()
        self._closing = False
        self._sending = False
        self._failure: str | None = None
        self._sequence = 0
        self.events = 0
        """Events sent so far."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.SNDTIMEO, int(timeout_seconds * 1000))
        self._socket.setsockopt(zmq.RCVTIMEO, int(timeout_seconds * 1000))
        self._socket.setsockopt(zmq.LINGER, 0)
        if curve is not None:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_public.encode("ascii"))
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public.encode("ascii"))
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret.encode("ascii"))
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise EmitterError(f"cannot connect to {endpoint}: {error}") from error
        self._thread = threading.Thread(
            target=self._send_loop, name="memtracker-emitter", daemon=True
        )
        self._thread.start()
        self._sender_ident = self._thread.ident

    def emit(self, event: Event) -> None:
        """Queues one event. Blocks while the reader is too slow."""
        self._append(event)
        waiting = len(self._queue)
        if waiting >= BATCH_EVENTS:
            self._wake.set()
            if waiting >= QUEUE_EVENTS:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        # The sender itself can get here when the collector runs finalizers on its thread; it must not wait for itself.
        if threading.get_ident() == self._sender_ident:
            return
        while (
            len(self._queue) >= QUEUE_EVENTS and self._failure is None and self._thread.is_alive()
        ):
            self._room.clear()
            self._wake.set()
            self._room.wait(0.1)
        if self._failure is not None:
            raise EmitterError(self._failure)

    def _send_loop(self) -> None:
        packer = msgpack.Packer(use_bin_type=True)
        while True:
            if len(self._queue) < BATCH_EVENTS and not self._closing:
                self._wake.wait(BATCH_SECONDS)
            self._wake.clear()
            closing = self._closing
            while self._queue:
                try:
                    self._send_batch(packer)
                except zmq.ZMQError as error:
                    self._failure = f"the orchestrator does not read the event stream: {error}"
                    self._queue.clear()
                    self._room.set()
                    return
                self._room.set()
                if len(self._queue) < BATCH_EVENTS and not closing:
                    break
            if closing and not self._queue:
                return

    def _send_batch(self, packer: msgpack.Packer) -> None:
        self._sending = True  # before anything leaves the queue: `flush` looks at the queue first
        take = min(len(self._queue), BATCH_EVENTS)
        pop = self._queue.popleft
        batch = [pop() for _ in range(take)]
        frame = packer.pack((protocol.PROTOCOL_VERSION, self._run, self._sequence, batch))
        self._socket.send(frame)
        self._sequence += 1
        self.events += take
        self._sending = False

    def flush(self, timeout_seconds: float = 10.0) -> None:
        """Waits until everything queued so far was handed to ZeroMQ and is counted in `events`.

        Raises:
            EmitterError: the reader does not read.
        """
        deadline = time.monotonic() + timeout_seconds
        while (self._queue or self._sending) and self._failure is None:
            if time.monotonic() > deadline:
                raise EmitterError(f"events were not read within {timeout_seconds} seconds")
            self._wake.set()
            time.sleep(0.001)
        if self._failure is not None:
            raise EmitterError(self._failure)

    def close(self, status: str, counts: protocol.Fields) -> None:
        """Sends everything queued and then the `close` event, which is the last one and counts itself. Waits until it was read.

        Raises:
            EmitterError: the reader went away, so the trace is incomplete.
        """
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join()
        if self._failure is None:
            # Late frees (finalizers between the drain and here) are part of the run and stand before the close event.
            tail = list(self._queue)
            last = protocol.close(status, self.events + len(tail) + 1, counts)
            frame = msgpack.packb(
                (protocol.PROTOCOL_VERSION, self._run, self._sequence, [*tail, last]),
                use_bin_type=True,
            )
            self._queue.clear()
            try:
                self._socket.send(frame)
                self.events += len(tail) + 1
            except zmq.ZMQError as error:
                self._failure = f"the orchestrator does not read the event stream: {error}"
        if self._failure is None:
            try:
                self._socket.recv()
            except zmq.ZMQError as error:
                self._failure = f"the orchestrator did not say that it read everything: {error}"
        self._socket.close()
        self._context.term()
        if self._failure is not None:
            raise EmitterError(self._failure)
