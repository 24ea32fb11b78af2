"""The driver on real time: takes jobs, has them decided and run, and loses nothing."""
