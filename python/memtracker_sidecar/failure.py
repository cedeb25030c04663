"""An exception of the training code, told in one paragraph and an `error` event."""

from __future__ import annotations

import traceback
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.call_site import is_users
from memtracker_sidecar.recorder import StorageRecorder


def error_event(
    error: BaseException, recorder: StorageRecorder, *, fatal: bool = True
) -> protocol.Event:
    """What happened, in which operator on which shapes, in which module, and from which line of the user's code."""
    detail: dict[str, Any] = {}
    cause = f"{type(error).__name__}: {error}".strip()
    failed = recorder.failed_operator
    if failed is not None and failed.error is error:
        detail = {
            "operator": failed.operator,
            "arguments": list(failed.arguments),
            "module": failed.module,
        }
        cause += f" The operator was {failed.operator} on {', '.join(failed.arguments)}."
        if failed.module:
            cause += f" The module was {failed.module}."
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    if own:
        place = own[-1]
        detail["place"] = f"{place.filename}:{place.lineno} in {place.name}"
        cause += f" It was raised from {detail['place']}."
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return protocol.error(type(error).__name__, cause, text, detail, fatal)
