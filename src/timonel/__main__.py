"""``python -m timonel`` is the command ``timonel``."""

from timonel.cli.main import main

if __name__ == "__main__":
    main()
