"""What a trainer needs to train on packs: a module per trainer, which imports it."""
