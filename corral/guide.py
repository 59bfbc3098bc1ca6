"""Tools and messages as text that a model, or a person, can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corral.tools import Tool
from corral.types import Verbosity


def tool_text(tool: Tool, verbosity: Verbosity) -> str:
    """A tool and its arguments, one a line."""
    function = tool.schema(verbosity)["function"]
    parameters = function["parameters"]
    required = parameters.get("required", [])
    lines = [f"- {tool.name}({', '.join(n if n in required else f'{n}?' for n in parameters['properties'])})"]
    if "description" in function:
        lines[0] += ": " + function["description"].replace("\n", "\n    ")
    for name, schema in parameters["properties"].items():
        text = f": {schema['description']}" if "description" in schema else ""
        lines.append(f"    {name} ({_type_text(schema)}){text}")
    return "\n".join(lines)


def _type_text(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        text = "one of " + ", ".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    elif "anyOf" in schema:
        text = " or ".join(_type_text(option) for option in schema["anyOf"])
    elif "$ref" in schema:
        text = str(schema["$ref"]).rpartition("/")[2]
    else:
        text = str(schema.get("type", "any"))
        text += f" of {_type_text(schema['items'])}" if "items" in schema else ""
    if "default" in schema:
        text += f", default {json.dumps(schema['default'], ensure_ascii=False)}"
    return text


def message_text(message: Mapping[str, Any]) -> str:
    """The text parts of a chat message."""
    content = message.get("content", "")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(p.get("text", "")) if isinstance(p, Mapping) else str(p) for p in parts)
