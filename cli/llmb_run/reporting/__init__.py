"""A report on runs: one data structure, and the forms that it is printed in."""
