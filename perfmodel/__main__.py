"""``python -m perfmodel`` is the ``perfmodel`` program."""

from perfmodel.cli.main import main

if __name__ == "__main__":
    main()
