"""Trainings that other libraries lead: a callback for each, which they load themselves."""
