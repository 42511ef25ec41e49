"""Kaggle's own client, tamed: imported late, its failures told in one line, and asked again where that may help."""

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from data_prep.files import InputError

Result = TypeVar("Result")

NO_CREDENTIALS = (
    "no Kaggle credentials that work: make a token at https://www.kaggle.com/settings and set KAGGLE_API_TOKEN, "
    "or save it as ~/.kaggle/access_token"
)
EXPLAINED = {
    401: "Kaggle refused the credentials (401); make a new token at https://www.kaggle.com/settings",
    403: "Kaggle does not allow it (403); is the name right, and are the competition's rules accepted?",
    404: "Kaggle does not know it (404); is the name right?",
    429: "too many requests (429); try again later",
}
# Statuses after which a question may be asked again; after the first, even one that must not be done twice.
REFUSED = 429
PASSING = (REFUSED, 500, 502, 503, 504)


def connect() -> Any:
    """Kaggle's client (kaggle.api.kaggle_api_extended.KaggleApi), signed in.

    Importing it prints help, tries to sign in and may end the program, which becomes an InputError here.
    """
    try:
        with explained("signing in"), contextlib.redirect_stdout(io.StringIO()):
            from kaggle.api.kaggle_api_extended import KaggleApi  # type: ignore[import-untyped]

            client = KaggleApi()
            client.authenticate()
    except SystemExit as error:
        raise InputError(NO_CREDENTIALS) from error
    except ImportError as error:
        raise InputError(f"Kaggle's client cannot be imported ({error}): pip install 'kaggle>=2.2,<3' six") from error
    return client


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the client's failures into an InputError of one line; what it prints goes to stderr."""
    from requests.exceptions import RequestException

    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (RequestException, ValueError, OSError) as error:
        status = status_of(error)
        reason = EXPLAINED.get(status, f"Kaggle's servers failed ({status})") if status else _first_line(error)
        raise InputError(f"{what}: {reason}") from error


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind a failure, None where there was no answer; the client hides some in its ValueErrors."""
    for candidate in (error, error.__context__):
        response = getattr(candidate, "response", None)
        if response is not None:
            return int(response.status_code)
    return None


def _first_line(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "Kaggle's answer was no JSON"
    text = str(error).strip().splitlines()
    return f"no answer ({type(error).__name__})" if isinstance(error, OSError) or not text else text[0]


@dataclass(frozen=True)
class Patience:
    """How long to ask again and to wait."""

    attempts: int = 6
    first_delay: float = 2.0  # seconds, doubled after every attempt
    poll: float = 15.0  # seconds between two looks at something that takes its time
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    def ask(self, what: str, question: Callable[[], Result], twice: bool = True) -> Result:
        """The answer to a question, which is asked again after passing failures; InputError with the last one.

        What must not be done twice (`twice` is false) is only asked again where the server refused to do it (429).
        """
        for attempt in range(self.attempts):
            try:
                with explained(what):
                    return question()
            except InputError as error:
                cause = error.__cause__
                status = None if cause is None else status_of(cause)
                unanswered = status is None and isinstance(cause, OSError)
                passing = status == REFUSED or (twice and (unanswered or status in PASSING))
                if attempt == self.attempts - 1 or not passing:
                    raise
                self.sleep(self._delay(cause, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _delay(self, cause: BaseException | None, attempt: int) -> float:
        """What the server asks for, else longer and longer."""
        asked = getattr(getattr(cause, "response", None), "headers", {}).get("Retry-After", "")
        return float(asked) if asked.isdecimal() else self.first_delay * 2**attempt

    def wait(self, what: str, look: Callable[[], Result | None], seconds: float) -> Result:
        """Look until there is a result; raises InputError when there is none after `seconds`."""
        end = self.now() + seconds
        while (result := look()) is None:
            if self.now() >= end:
                raise InputError(f"{what}: still not there after {seconds / 60:.0f} minutes")
            self.sleep(self.poll)
        return result
