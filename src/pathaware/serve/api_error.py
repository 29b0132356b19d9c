"""Errors of the API: each is a status and one sentence in JSON; tracebacks stay on the server's stderr."""

from __future__ import annotations

import sys
import traceback

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from pathaware.core.errors import UsageError

SENTENCES = {404: "there is nothing at this address", 405: "this address does not take this method"}


class ApiError(Exception):
    """A request that is refused with this status and sentence; `retry` is the delay in seconds to suggest."""

    def __init__(self, status: int, sentence: str, *, retry: int | None = None) -> None:
        self.status, self.sentence, self.retry = status, sentence, retry
        super().__init__(sentence)

    def response(self) -> JSONResponse:
        headers = None if self.retry is None else {"Retry-After": str(self.retry)}
        return JSONResponse({"error": self.sentence}, self.status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Make the app answer every exception in the form of `ApiError`."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(UsageError)
    async def usage_error(_: Request, error: UsageError) -> JSONResponse:
        """The model or its method cannot do this."""
        return ApiError(409, error.message).response()

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        sentence = SENTENCES.get(error.status_code, "this request cannot be answered")
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def missing_parameter(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        names = " and ".join(sorted({f"?{each['loc'][-1]}=" for each in found}))
        missing = all(each["type"] == "missing" for each in found)
        lacks = f"the address lacks {names}"
        return ApiError(422, lacks if missing else f"{names} has a value that cannot be used").response()

    @app.exception_handler(Exception)
    async def server_error(_: Request, error: Exception) -> JSONResponse:
        print("".join(traceback.format_exception(error)), file=sys.stderr)
        return ApiError(500, "something went wrong in the server; its terminal says what").response()
