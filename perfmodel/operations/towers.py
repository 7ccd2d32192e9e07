"""Tokens of stacks beside the language model: encoders and vision towers."""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.model.build import ModelSpec, TowerSpec

ENCODER = "encoder"


def tower_tokens(tower: TowerSpec, sequence_length: Column) -> Column:
    """Tokens of a tower per sequence; 0 where they are not stated and it is no encoder."""
    if tower.tokens:
        return np.full(sequence_length.shape, float(tower.tokens))
    return sequence_length if tower.name == ENCODER else np.zeros(sequence_length.shape)


def encoder_tokens(model: ModelSpec, sequence_length: Column) -> Column:
    """Tokens of a sequence to which cross attention attends."""
    for tower in model.towers:
        if tower.name == ENCODER:
            return tower_tokens(tower, sequence_length)
    return sequence_length
