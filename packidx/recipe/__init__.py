"""One file that says what to count and how to plan it: read, run, and kept with the plan."""

from packidx.recipe.recipe import PackSummary, Recipe, pack_recipe, read_recipe

__all__ = ["PackSummary", "Recipe", "pack_recipe", "read_recipe"]
