"""Request + recipe + site -> JobPlan. Pure."""
