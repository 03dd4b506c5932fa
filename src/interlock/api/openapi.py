"""What the OpenAPI document says of bodies and answers, from the same adapters that read and write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import JsonSchemaMode

from interlock.api import wire
from interlock.api.problems import CONTENT_TYPE

_REFERENCE = "#/components/schemas/{model}"
_described: dict[str, tuple[JsonSchemaMode, type]] = {}


def described(answer: type | None = None, *, body: type | None = None, status: int = 200) -> dict[str, Any]:
    """The part of an operation that FastAPI cannot know: a body, an answer, and that errors are problems."""
    content = {} if answer is None else {"content": {"application/json": {"schema": _schema(answer, "serialization")}}}
    operation: dict[str, Any] = {
        "responses": {
            str(status): {"description": "Done", **content},
            "default": {"description": "A problem document", "content": {CONTENT_TYPE: {"schema": _PROBLEM}}},
        },
        "security": [{"bearer": []}],
    }
    if body is not None:
        schema = _schema(body, "validation")
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def install(app: FastAPI) -> None:
    """Have the app's document hold the schemas that `described` speaks of."""
    plain: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        for path in document["paths"].values():
            for operation in path.values():
                # FastAPI's own form of a validation error: here it is a problem document like the others.
                operation["responses"].pop("422", None)
        components = document.setdefault("components", {})
        components["schemas"] = _schemas()
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _schema(kind: type, mode: JsonSchemaMode) -> dict[str, str]:
    _described[kind.__name__] = (mode, kind)
    return {"$ref": _REFERENCE.format(model=kind.__name__)}


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for name, (mode, kind) in _described.items():
        own = wire.reader(kind).json_schema(mode=mode, ref_template=_REFERENCE)
        schemas.update(own.pop("$defs", {}))
        schemas[name] = own
    return schemas


_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "facts"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "facts": {"type": "object"},
    },
}
