"""A processor folder for every image-text model of transformers, made offline: real processor and
image processor classes, Qwen's vocabulary with each class's special tokens, and a chat template.

    classes   which processor class serves which model types
    parts     a class's tokenizer, image, video and audio processors, read off its source
    needs     what some classes need besides, and why others cannot be built
    build     the processor itself
    real      what the processor makes of a record
"""

from every_processor.build import build
from every_processor.classes import HEARING, processor_classes, unmapped
from every_processor.needs import NOT_BUILT

__all__ = ["HEARING", "NOT_BUILT", "build", "processor_classes", "unmapped"]
