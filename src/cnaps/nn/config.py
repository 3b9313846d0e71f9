"""The settings of a model."""

from __future__ import annotations

from dataclasses import dataclass

from cnaps.errors import InputError


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the shape of a model; `preset` gives the two readings of the paper."""

    backbone: str = "resnet18"
    adaptation: str = "film+ar"  # none | film | film+ar
    head: str = "linear"  # linear | mahalanobis | cosine | ridge
    features: str = "last"  # last: the pooled last stage; all: the pooled outputs of all stages, side by side
    bias_width: int | None = None  # hidden width of the linear head's bias network; None: that of the features
    embedding_size: int = 64  # of z_G; 0: no set encoder
    set_encoder_norm: str = "context"  # context: statistics of the context set; none
    set_encoder_size: int | None = None  # shrink images to this size for the set encoder
    generator_width: int | None = None  # None: as wide as the stage
    lora_rank: int = 0  # of the LoRA terms of the 1x1 convolutions; 0: none, as in the paper
    lora_large: float = 1.0  # the share of these terms at 224 pixels; all up to 128, in proportion between
    spread: bool = False  # stage encoders also see the spread within and between classes
    image_size: int | None = None  # None: what the backbone prefers
    backbone_norm: str = "running"  # running | batch: what the backbone's batch norms use (batch: joint training)

    def __post_init__(self) -> None:
        choices = {
            "adaptation": ("none", "film", "film+ar"),
            "features": ("last", "all"),
            "set_encoder_norm": ("context", "none"),
            "backbone_norm": ("running", "batch"),
        }
        for field, allowed in choices.items():
            value = getattr(self, field)
            if value not in allowed:
                raise InputError(f"{field} cannot be {value!r}; there are: {', '.join(allowed)}")
        if self.lora_rank < 0:
            raise InputError(f"lora_rank cannot be {self.lora_rank}: it is 0 (no LoRA) or more")
        if not 0 <= self.lora_large <= 2:
            raise InputError(f"lora_large cannot be {self.lora_large}: it is a share of 0 to 2")
        if self.set_encoder_size is not None and self.set_encoder_size < 32:
            raise InputError(
                f"set_encoder_size cannot be {self.set_encoder_size}: five poolings need 32 pixels or more"
            )

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """`reference` (as the published weights have it) or `paper` (as its tables have it).

        >>> ModelConfig.preset("reference").bias_width
        1
        """
        if name == "reference":
            return cls(bias_width=1)
        if name == "paper":
            return cls(backbone="resnet18-paper")
        raise InputError(f"no preset named {name!r}; there are: reference, paper")
