"""``python -m shadowprice``: the ``shadowprice`` command."""

from shadowprice.cli.main import run

if __name__ == "__main__":
    run()
