"""One file that says what to count and how to plan it: read, run, and kept with the plan."""

from packidx.recipe.recipe import Recipe as Recipe
from packidx.recipe.recipe import read_recipe as read_recipe
from packidx.recipe.run import PackSummary as PackSummary
from packidx.recipe.run import pack_recipe as pack_recipe
