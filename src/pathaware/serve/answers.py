"""Every error is one sentence in JSON; what went wrong in our own code stays on our own stderr."""

from __future__ import annotations

import sys
import traceback

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from pathaware.serve.refusals import Refused

WORDS = {404: "there is nothing at this address", 405: "this address does not take this method"}


def refusal(refused: Refused) -> JSONResponse:
    return JSONResponse({"error": refused.sentence}, refused.status, refused.headers)


def answer_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return refusal(error)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> JSONResponse:
        sentence = WORDS.get(error.status_code, "this request cannot be answered")
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def incomplete(_: Request, error: RequestValidationError) -> JSONResponse:
        names = " and ".join(sorted({f"?{found['loc'][-1]}=" for found in error.errors()}))
        return JSONResponse({"error": f"the address lacks {names}"}, 422)

    @app.exception_handler(Exception)
    async def our_fault(_: Request, error: Exception) -> JSONResponse:
        print("".join(traceback.format_exception(error)), file=sys.stderr)
        return JSONResponse({"error": "something went wrong in the server; its terminal says what"}, 500)
