"""`ProcessorFiles`: a processor's tokenizer, template and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from packidx.digests import canonical_json, digest_parts
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import MediaModel
from packidx.processor.fingerprint import named_settings, normalise_tokenizer
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation

TOOL_USE = "tool_use"
"""Name of the template that tokenizers take for tools; processors take their default one."""
_LONG = ("tokenizer", "template", TOOL_USE)  # shown as digests
_FACTS = (*_LONG, "end_of_text", "limit", "trusts_code")


@dataclass
class ProcessorFiles:
    """Data of a processor, without its code. Picklable."""

    name: str
    tokenizer: Tokenizer
    """Neither padding nor truncating. Shared: it must not be changed."""
    template: ChatTemplate
    tool_template: ChatTemplate | None = None
    """Template of a tokenizer for records with tools, also an empty list; None if it has none."""
    vision: MediaModel | None = None
    image_settings: dict[str, Any] | None = None
    video_settings: dict[str, Any] | None = None
    own_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the processor itself that change tokens."""
    policy: LabelPolicy = DEFAULT_POLICY
    limit: int | None = None
    """Number of tokens at which the real processor truncates samples."""
    doubt: str | None = None
    """The reason why training may make other tokens than these files; None if it makes these."""
    trusts_code: bool = False
    """True if the folder has code of its own and it is run."""
    code: str | None = None
    """Digest of that code; None if unknown."""
    splits_special: bool = False
    """True if special tokens in texts are tokenized as plain text."""
    folder: str | None = None
    """Folder of the files; None for a processor object."""
    family: str | None = None
    """Name of its `Family`; None if no family counts it."""
    is_plain: bool = False
    """True if `AutoTokenizer` alone makes the tokens of texts that the processor makes."""
    unknown: str | None = None
    """The reason why its media cannot be counted; None if they can."""
    lacks_package: bool = False
    """True if they cannot be counted because torch, or another package, is not installed."""
    keywords: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings given beside the folder, by part, as keywords of the part's class."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """The same settings by their full names: ``{"images.max_pixels": 602112}``."""

    older_names: tuple[str, ...] = ()
    """See `Family`."""

    @property
    def builds_all(self) -> bool:
        """True if every record is built, since the tokenizer has rules of its own."""
        return self.splits_special or self.trusts_code

    @property
    def is_probed(self) -> bool:
        """True if it takes media and no family of ours counts it."""
        return self.image_settings is not None and self.family is None

    @property
    def auto_class(self) -> str:
        """The class of transformers that loads the folder."""
        return "AutoTokenizer" if self.image_settings is None else "AutoProcessor"

    def fingerprint(self) -> str:
        """Return the SHA-256 that must be equal where lengths are counted and samples are built."""
        return digest_parts(canonical_json(self._content))

    @cached_property
    def _content(self) -> dict[str, Any]:
        template, policy = self.template, self.policy.describe()
        used = {k: v for t in (template, self.tool_template) if t for k, v in t.used_tokens.items()}
        if used:
            policy["special_tokens"] = used
        content: dict[str, Any] = {
            "tokenizer": normalise_tokenizer(self.tokenizer.to_str()),
            "template": template.plain_source,
            "image": self.image_settings,
            "video": self.video_settings,
            "policy": policy,
        }
        if self.tool_template is not None:
            content[TOOL_USE] = self.tool_template.plain_source
        if self.own_settings:
            content["own"] = self.own_settings
        if (eos := template.special_tokens.get("eos_token")) is not None:
            content["end_of_text"] = eos
        if self.limit is not None:
            content["limit"] = self.limit
        if self.trusts_code:
            content["trusts_code"] = self.code or True
        if self.splits_special:
            content["splits_special"] = True
        return content

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Content of the fingerprint by the names that users write; long parts as digests."""
        content = self._content
        facts = {name: content[name] for name in _FACTS if content.get(name) is not None}
        for name in facts.keys() & {*_LONG}:
            facts[name] = digest_parts(canonical_json(facts[name]))[:12]
        return (
            facts
            | named_settings("labels", content["policy"], False)
            | named_settings("images", self.image_settings, "images" in self.older_names)
            | named_settings("videos", self.video_settings, "videos" in self.older_names)
            | named_settings("", self.own_settings, False)
        )

    @cached_property
    def media_token_ids(self) -> dict[str, int]:
        """Kind of medium → id of the token that stands for its features."""
        tokens = {} if self.vision is None else self.vision.feature_tokens
        ids = {kind: self.tokenizer.token_to_id(token) for kind, token in tokens.items()}
        return {kind: ident for kind, ident in ids.items() if ident is not None}

    @cached_property
    def feature_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that stand for features of media, ascending."""
        return tuple(sorted(set(self.media_token_ids.values())))

    @property
    def end_of_text(self) -> int | None:
        """Id of the token that ends a document; None if the tokenizer names none."""
        return self.named_id("eos_token")

    def named_id(self, name: str) -> int | None:
        """Return the id of a token that the tokenizer names, such as ``pad_token``."""
        token = self.template.special_tokens.get(name)
        ident: int | None = None if token is None else self.tokenizer.token_to_id(token)
        return ident

    def template_of(self, conversation: Conversation) -> ChatTemplate:
        """Return the chat template that renders a conversation."""
        return self.template if conversation.tools is None else self.tool_template or self.template

    def adds_special_tokens(self, text: str) -> bool:
        """Return True if the tokenizer adds its special tokens to `text`; one alone never does."""
        return self.image_settings is not None and self.template.adds_special_tokens(text)
