"""The live service: schedules jobs in real time, with durable state and crash recovery."""
