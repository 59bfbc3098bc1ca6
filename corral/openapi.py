"""The description of an environment server's API: an OpenAPI document and a page for people. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter

from corral.bodies import Problem
from corral.endpoints import ENDPOINTS, Endpoint
from corral.protocol import KEY_HEADER, KEY_PATTERN, MAX_WAIT, WAIT_HEADER

_REFS = "#/components/schemas/{model}"

_KEY = {
    "name": KEY_HEADER, "in": "header", "required": False,
    "schema": {"type": "string", "pattern": KEY_PATTERN},
    "description": "names the operation: repeated under the same key it is joined, or its answer given again",
}  # fmt: skip
_WAIT = {
    "name": WAIT_HEADER, "in": "header", "required": False,
    "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT},
    "description": "with a key: after so many seconds without an answer, 202; ask again under the same key",
}  # fmt: skip
_VERBOSITY = {
    "name": "verbosity", "in": "query", "required": False,
    "schema": {"type": "string", "enum": ["minimal", "brief", "full"], "default": "brief"},
    "description": "how much tool descriptions say",
}  # fmt: skip


def document(version: str, tasks: Iterable[str], *, has_token: bool) -> dict[str, Any]:
    """The OpenAPI document of a server with these tasks."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    known = {"task_id": {"type": "string", "enum": list(tasks)}}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas, known)
    paths["/tasks/{task_id}/trials"]["post"]["responses"]["200"]["links"] = _links()
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Corral environment server", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if has_token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    return described


def _operation(endpoint: Endpoint, schemas: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    answers = {"200": _response("the answer", endpoint.answer, schemas)}
    answers["202"] = _response("not ended yet: ask again under the same key", Problem, schemas)
    for status in endpoint.errors:
        answers[str(status)] = _response(HTTPStatus(status).phrase, Problem, schemas)
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [
            *_path_parameters(endpoint, known),
            _KEY,
            _WAIT,
            *([_VERBOSITY] if endpoint.has_verbosity else []),
        ],
        "responses": answers,
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": _schema(endpoint.body, schemas, "validation")}}
        operation["requestBody"] = {"required": endpoint.body_required, "content": content}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    return "_".join([endpoint.method.lower(), *re.findall(r"\w+", endpoint.path)])


def _path_parameters(endpoint: Endpoint, known: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": known.get(name, {"type": "string", "minLength": 1})}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _links() -> dict[str, Any]:
    """What can be asked of a trial once it is open."""
    return {
        _operation_id(endpoint): {
            "operationId": _operation_id(endpoint),
            "parameters": {"trial_id": "$response.body#/trial_runtime_id"},
        }
        for endpoint in ENDPOINTS
        if "{trial_id}" in endpoint.path
    }


def _response(description: str, model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": _schema(model, schemas, "serialization")}}
    return {"description": description, "content": content}


def _schema(model: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema(ref_template=_REFS, mode=mode)
    schemas.update(schema.pop("$defs", {}))
    if (title := schema.get("title")) is None:
        return schema
    schemas[title] = schema
    return {"$ref": _REFS.format(model=title)}


def page(version: str) -> str:
    """The same for people: one page, no scripts."""
    rows = "\n".join(_row(endpoint) for endpoint in ENDPOINTS)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Corral environment server</title>
<style>body{{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}}td{{padding:.2em .8em .2em 0}}
td:nth-child(-n+2){{font-family:monospace}}</style></head><body>
<h1>Corral environment server {html.escape(version)}</h1>
<p>The whole description is in <a href="openapi.json">openapi.json</a>. MCP clients reach the tools of an open trial at
its <code>mcp_url</code>; <a href="metrics">metrics</a> is for Prometheus.</p>
<table>{rows}</table></body></html>
"""


def _row(endpoint: Endpoint) -> str:
    cells: Iterable[str] = (endpoint.method, endpoint.path, endpoint.summary, _fields(endpoint))
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _fields(endpoint: Endpoint) -> str:
    names = ", ".join(endpoint.body.model_fields) if endpoint.body is not None else ""
    return f"{{{names}}}" if names else "?verbosity=" if endpoint.has_verbosity else ""
