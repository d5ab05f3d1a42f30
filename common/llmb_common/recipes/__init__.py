"""Recipes: ``recipe.yaml`` as frozen structs, the counts that follow from it, and the generated README parts."""
