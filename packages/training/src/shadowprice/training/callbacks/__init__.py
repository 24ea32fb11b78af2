"""Callbacks for trainings led by other libraries, which the script imports itself."""
