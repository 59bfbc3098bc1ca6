"""A small client of language models: OpenAI chat completions and Anthropic messages over HTTP, the rest by litellm.

``endpoints`` knows where a model is, ``messages`` what is said, ``openai`` and ``anthropic`` how it is written (pure),
``backoff`` when to try again (pure), ``client`` sends it.
"""

from __future__ import annotations
